"""`redis-state doctor`: prints what Redis holds of a checkpoint, and how to continue."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import (
    add_checkpoint,
    add_storage_options,
    add_stores,
    folder_of,
    use_storage_options,
    words_of,
)
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, command_of, config_of
from redis_state.cli.help import example
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.cli.output.causes import title_of
from redis_state.errors import ConfigError
from redis_state.files import Folder
from redis_state.maintain.purge import check_gen
from redis_state.protocol.instances import LATELY_MS
from redis_state.protocol.registry import QueryInfo, list_queries
from redis_state.recovery.copies import newest_fitting
from redis_state.recovery.doctor import (
    Diagnosis,
    PartitionHealth,
    diagnose,
    listing_problem,
    others_of_folder,
)
from redis_state.recovery.query_state import CountedStore, QueryState, state_of
from redis_state.recovery.rewind import newest_commit, startable_batches
from redis_state.status import figures
from redis_state.status.file_causes import file_causes
from redis_state.status.overview import status_of

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the state of a checkpoint and print how to continue",
        description=(
            "Check every partition of a checkpoint without changing anything. Print the newest "
            "batch that all partitions can serve, and the steps to continue from it."
        ),
        epilog=example(
            "redis-state doctor --url redis://localhost:6379/0 --checkpoint /data/flights",
            "redis-state doctor visits --url redis://localhost:6379/0",
            before=f"Exit status: 0 the query can continue, 1 an error, {PROBLEMS_STATUS} "
            "something has to be done first.",
        ),
    )
    add_checkpoint(parser)
    add_storage_options(parser)
    parser.add_argument(
        "--gen",
        help="the checkpoint's id, if its folder has no marker file, or was copied; without "
        "--checkpoint Spark's logs are not read",
    )
    add_stores(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class CheckpointArguments:
    """Checkpoint to check, and the arguments that name it to other commands.

    Attributes:
        folder: ``None`` if only the id is known.
        which: Arguments that name the checkpoint.
        stores: Names of Python stores, which only `rewind` takes.
        server: Arguments that name the server.
        state: Location of the state in Redis.
    """

    folder: Folder | None
    which: str
    stores: str
    server: str
    state: QueryState

    @property
    def gen(self) -> str:
        """Id of the checkpoint; that of Spark's operators if Redis holds some."""
        return self.state.gens[0]

    def command(self, name: str, *more: str) -> str:
        """Returns a command that can be pasted."""
        stores = self.stores if name == "rewind" else ""
        words = ["redis-state", name, stores, self.which, *more, self.server]
        return " ".join(word for word in words if word)

    def purge(self, gen: str, *more: str) -> str:
        """Returns a command that purges a checkpoint, or brings it back."""
        return " ".join(["redis-state purge", "--gen", gen, *more, self.server])


@dataclass(frozen=True, slots=True)
class Logs:
    """Batches in Spark's logs of a query.

    Attributes:
        committed: The newest batch of the commit log; ``None`` if there is none.
        startable: The batches after which the logs allow a start.
    """

    committed: int | None
    startable: frozenset[int]

    @classmethod
    def of(cls, folder: Folder, state: QueryState) -> Logs:
        """Reads the logs of a checkpoint folder."""
        committed = newest_commit(folder)
        found = {batch for batch in startable_batches(folder) if batch >= state.since}
        return cls(committed, frozenset(found if committed is None else found | {committed}))


def place_of(arguments: argparse.Namespace, client: Client, tenant: str) -> CheckpointArguments:
    """Returns the checkpoint that the arguments name.

    Raises:
        ConfigError: The arguments name no checkpoint, or the folder does not exist.
        StateError: The folder has no marker file, or was moved or copied.
    """
    checkpoint, gen = arguments.checkpoint, arguments.gen
    if checkpoint is None and gen is None and not arguments.stores:
        raise ConfigError(
            "examining a checkpoint",
            found="no checkpoint is named",
            advice=(
                "Give its folder with --checkpoint, its id with --gen, or the names of Python "
                "stores; `redis-state queries` lists ids and names."
            ),
        )
    if gen is not None:
        check_gen(gen, attempted="examining a checkpoint")
    words = words_of(arguments, gen=gen)
    folder = None if checkpoint is None else folder_of(arguments)
    state = state_of(client, folder, gen=gen, names=arguments.stores, tenant=tenant)
    stores = shlex.join(arguments.stores)
    return CheckpointArguments(folder, shlex.join(words), stores, command_of(arguments), state)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report and the advice."""
    config = config_of(arguments)
    tenant, line = keys.tenant_of(config.key_prefix), ProgressLine()
    with closing(Client(config)) as client:
        place = place_of(arguments, client, tenant)
        use_storage_options(client, arguments)
        logs = None if place.folder is None else Logs.of(place.folder, place.state)
        try:
            found = diagnose(client, *place.state.gens, tenant=tenant, progress=line)
            newer, older = others_of_folder(client, place.gen, tenant=tenant)
            problem = listing_problem(client, place.gen, tenant=tenant)
            notes = list(_told_files(client, place.state.gens, tenant))
        finally:
            line.end()
    for text in report(found, place.state):
        print(text)
    steps, status = advice(found, logs, place)
    print(steps)
    for text in notes:
        print(text)
    if problem:
        print(f"Only tools are affected: {problem}. The next start of the query writes it again.")
    if newer is not None:
        print(_told_newer(newer, place))
    for info in older:
        print(_told_older(info, place))
    return status


def _told_files(client: Client, gens: Sequence[str], tenant: str) -> Iterator[str]:
    """Yields what is wrong with files and shares of redisMemory; no batch depends on it yet."""
    for info in list_queries(client, tenant=tenant):
        if info.gen in gens:
            for cause in file_causes(status_of(client, info, tenant=tenant)):
                yield f"{title_of(cause)}: {figures.plain(cause.found)} {cause.advice}"


def _told_newer(info: QueryInfo, place: CheckpointArguments) -> str:
    return (
        f"The folder of this checkpoint now has checkpoint {info.gen}: the folder was deleted and "
        "created again, or its number of partitions was changed. If the old checkpoint is no "
        f"longer needed:\n  {place.purge(place.gen)}"
    )


def _told_older(info: QueryInfo, place: CheckpointArguments) -> str:
    return (
        f"Redis also holds an older checkpoint of this folder, {info.gen}, last started "
        f"{figures.moment(info.seen_ms)} UTC: the folder was deleted and created again. If the "
        f"older checkpoint is no longer needed:\n  {place.purge(info.gen)}"
    )


def report(found: Diagnosis, state: QueryState) -> Iterator[str]:
    """Yields a line for each store, followed by a line for each of its partitions."""
    names = {one.gen: f" of {one.name[:80]!r} ({one.gen})" for one in state.stores}
    by_store = groupby(
        found.partitions,
        key=lambda one: (one.id.store.gen, one.id.store.operator, one.id.store.store),
    )
    for (gen, operator, store), partitions in by_store:
        yield f"operator {operator}, store {store}{names.get(gen, '')}"
        for one in partitions:
            yield f"  partition {one.id.partition}: {_line(one)}"
    for counted in state.stores:
        yield f"store {counted.name[:80]!r}: its newest batch is {counted.newest}"


def _line(one: PartitionHealth) -> str:
    if one.problem:
        return one.problem
    text = f"versions {_ranges(one.loadable)}; newest {one.latest}, opened {one.opened}"
    if one.broken:
        text += f"; not whole: {', '.join(one.broken)}"
    if one.parent:
        text += f"; {one.parent}"
    return text


def _ranges(versions: frozenset[int]) -> str:
    found: list[list[int]] = []
    for version in sorted(versions - {0}):
        if found and found[-1][1] == version - 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found) or "none"


def advice(found: Diagnosis, logs: Logs | None, place: CheckpointArguments) -> tuple[str, int]:
    """Returns the steps to take, and the exit status."""
    if found.purged:
        commands = "".join(f"\n  {place.purge(gen, '--recall')}" for gen in found.purged)
        return f"It was purged within the last day. Bring it back:{commands}", PROBLEMS_STATUS
    if logs is None:
        return _without_logs(found, place)
    committed = logs.committed
    behind = place.state.behind(committed)
    if committed is None:
        return _at_the_beginning(behind, place)
    newest = found.newest_batch(among=logs.startable)
    if newest is None:
        return _without_a_batch(found, committed, place), PROBLEMS_STATUS
    if newest == committed and not behind:
        return (
            f"Batch {committed} is the newest in the commit log, and all partitions can serve it.",
            0,
        )
    text = (
        f"The commit log ends with batch {committed}; batch {newest} is the newest that all "
        "partitions can serve. Restore the Redis data that held the later batches, or go back"
    )
    if newest == committed:
        names = ", ".join(f"{one.name[:80]!r} (batch {one.newest})" for one in behind)
        text = (
            f"The commit log ends with batch {committed}, which all partitions can serve, but in "
            f"Redis another batch is the newest of {names}: the logs were moved without the "
            "stores. Set the stores to this batch"
        )
    return f"{text}:\n{_steps(newest, place)}", PROBLEMS_STATUS


def _steps(batch: int, place: CheckpointArguments) -> str:
    again = "it runs the later batches again, so the sink gets them twice"
    return (
        f"  1. stop the query, and wait {LATELY_MS // 60_000} minutes, or add --force below;\n"
        f"  2. {place.command('rewind', f'--to-batch {batch}', '--yes')}\n"
        f"  3. start the query: {again}."
    )


def _without_logs(found: Diagnosis, place: CheckpointArguments) -> tuple[str, int]:
    """Returns the advice that needs no logs, and the exit status."""
    newest = found.newest_batch()
    if newest is None:
        return _without_a_batch(found, None, place), PROBLEMS_STATUS
    text = f"Batch {newest} is the newest that all partitions can serve."
    stores = place.state.stores
    if not stores or any(one.query_id for one in stores):
        return f"{text} Give --checkpoint to compare it with Spark's commit log.", 0
    if not place.state.behind(newest):
        return f"{text} If a query of Spark writes it, give its folder with --checkpoint.", 0
    return (
        f"{text} Redis has later ones. If a query of Spark writes it, give its folder with "
        "--checkpoint. Otherwise go back:\n  "
        f"{place.command('rewind', f'--to-batch {newest}', '--yes')}\nand run the batches from "
        f"{newest + 1} on again.",
        PROBLEMS_STATUS,
    )


def _at_the_beginning(behind: list[CountedStore], place: CheckpointArguments) -> tuple[str, int]:
    text = "Spark has committed no batch: the query begins at batch 0."
    ahead = [one for one in behind if one.newest > 0]
    if not ahead:
        return text, 0
    commands = "".join(f"\n  {place.purge(one.gen, '--now')}" for one in ahead)
    return (
        f"{text} Redis has later batches of its stores. Put the logs back, or remove the stores "
        f"for good:{commands}",
        PROBLEMS_STATUS,
    )


def _goes_back_with(found: Diagnosis, gen: str, batch: int) -> bool:
    """Returns whether all partitions outside of the copy serve its batch."""
    return all(one.serves(batch) for one in found.partitions if one.id.store.gen != gen)


def _without_a_batch(found: Diagnosis, committed: int | None, place: CheckpointArguments) -> str:
    """Returns the ways to recover, the best one first."""
    text = "No batch can be served by all partitions."
    if not found.partitions:
        text = f"Redis has nothing of this checkpoint ({place.gen})."
    if committed is not None:
        text += f" The commit log ends with batch {committed}, so the state was there."
    copy = None if place.folder is None else newest_fitting(place.folder, place.gen)
    ways = [
        "Check server, database and key prefix. The checkpoints of this server:\n       "
        f"redis-state queries {place.server}",
        "If Redis has a backup of its own (an RDB or AOF file), restart Redis from it.",
    ]
    if copy is not None and _goes_back_with(found, copy.gen, copy.batch):
        own = [one for one in found.partitions if one.id.store.gen == copy.gen]
        # A restore never replaces existing state.
        in_the_way = any(one.present and not one.serves(copy.batch) for one in own)
        away = f"       {place.purge(copy.gen, '--now')}\n" if in_the_way else ""
        ways.append(
            f"The checkpoint has a copy of the state after batch {copy.batch}. Stop the query, "
            f"wait {LATELY_MS // 60_000} minutes, or add --force below, then\n{away}       "
            f"{place.command('restore', '--yes')}\n     and start it: it runs the later batches "
            "again, so the sink gets them twice."
        )
    ways.append(
        "Otherwise the state is gone: start the query with a new checkpoint. It begins with empty "
        "state; do not delete this folder before you know from which position the source will be "
        "read."
    )
    head = "Stop the query, and choose the first of these steps that applies:"
    return "\n".join([text, head, *(f"  {at}. {way}" for at, way in enumerate(ways, 1))])
