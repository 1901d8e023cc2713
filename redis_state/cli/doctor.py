"""`redis-state doctor`: what Redis holds of a checkpoint, and how the query can go on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.checkpoint import add_checkpoint, add_storage_options, folder_of, words_of
from redis_state.cli.connection import ProgressLine, add_arguments, command_of, config_of
from redis_state.cli.help import example
from redis_state.cli.maintain import PROBLEMS_STATUS
from redis_state.errors import ConfigError
from redis_state.files import Folder
from redis_state.maintain.purge import check_gen
from redis_state.protocol.registry import QueryInfo
from redis_state.reader import figures
from redis_state.recovery.copies import newest_fitting
from redis_state.recovery.doctor import (
    Diagnosis,
    PartitionHealth,
    diagnose,
    listing_problem,
    others_of_folder,
)
from redis_state.recovery.marker import gen_of
from redis_state.recovery.rewind import newest_commit

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what Redis holds of a checkpoint and how the query can go on",
        description="Look at every partition of a checkpoint, change nothing, and name the newest "
        "batch that all of them can serve and the steps to go on from there.",
        epilog=example(
            "redis-state doctor --url redis://localhost:6379/0 --checkpoint /data/flights",
            before=f"Exit status: 0 the query can go on, 1 an error, {PROBLEMS_STATUS} something "
            "has to be done first.",
        ),
    )
    add_checkpoint(parser)
    add_storage_options(parser)
    parser.add_argument(
        "--gen",
        help="the checkpoint's id, if its folder has no marker file, or was copied; without "
        "--checkpoint Spark's logs are not looked at",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Place:
    """The checkpoint to look at, and the arguments by which other commands find it.

    Attributes:
        folder: ``None`` if only the id is known.
        which: The arguments that name the checkpoint.
        server: The arguments that name the server.
    """

    gen: str
    folder: Folder | None
    which: str
    server: str

    def command(self, name: str, *more: str) -> str:
        """A command that can be pasted."""
        return " ".join(["redis-state", name, self.which, *more, self.server])


def place_of(arguments: argparse.Namespace) -> Place:
    """Which checkpoint is meant.

    Raises:
        ConfigError: None is named, or the folder is not there.
        StateError: The folder has no marker file, or was moved or copied.
    """
    checkpoint, gen = arguments.checkpoint, arguments.gen
    if checkpoint is None and gen is None:
        raise ConfigError(
            "looking at a checkpoint",
            found="none is named",
            advice="Give its folder with --checkpoint, or its id with --gen; `redis-state queries` "
            "lists the ids.",
        )
    words = words_of(arguments)
    words += [] if gen is None else ["--gen", gen]
    folder = None if checkpoint is None else folder_of(arguments)
    if gen is None and folder is not None:
        gen = gen_of(folder)
    check_gen(gen, attempted="looking at a checkpoint")
    return Place(gen, folder, shlex.join(words), command_of(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Print what was found."""
    config = config_of(arguments)
    place = place_of(arguments)
    committed = None if place.folder is None else newest_commit(place.folder)
    tenant, line = keys.tenant_of(config.key_prefix), ProgressLine()
    with closing(Client(config)) as client:
        try:
            found = diagnose(client, place.gen, tenant=tenant, progress=line)
            newer, older = others_of_folder(client, place.gen, tenant=tenant)
            problem = listing_problem(client, place.gen, tenant=tenant)
        finally:
            line.end()
    for text in report(found):
        print(text)
    steps, status = advice(found, committed, place)
    print(steps)
    if problem:
        print(f"In the way of tools alone: {problem}. The next start of the query writes it anew.")
    if newer is not None:
        print(_told_newer(newer, place))
    for info in older:
        print(_told_older(info, place))
    return status


def _told_newer(info: QueryInfo, place: Place) -> str:
    return (
        f"The folder of this checkpoint has another one since, {info.gen}: it was deleted and "
        f"created again, or got another number of partitions. If nobody needs this one:\n"
        f"  redis-state purge --gen {place.gen} {place.server}"
    )


def _told_older(info: QueryInfo, place: Place) -> str:
    return (
        f"Redis also holds an older checkpoint of this folder, {info.gen}, last started "
        f"{figures.moment(info.seen_ms)} UTC: the folder was deleted and created again. If nobody "
        "needs it:\n"
        f"  redis-state purge --gen {info.gen} {place.server}"
    )


def report(found: Diagnosis) -> Iterator[str]:
    """One line for each partition, under one for each store."""
    by_store = groupby(
        found.partitions, key=lambda one: (one.id.store.operator, one.id.store.store)
    )
    for (operator, store), partitions in by_store:
        yield f"operator {operator}, store {store}"
        for one in partitions:
            yield f"  partition {one.id.partition}: {_line(one)}"


def _line(one: PartitionHealth) -> str:
    if one.problem:
        return one.problem
    text = f"versions {_ranges(one.loadable)}; newest {one.latest}, opened {one.opened}"
    if one.broken:
        text += f"; not whole: {', '.join(one.broken)}"
    return text


def _ranges(versions: frozenset[int]) -> str:
    found: list[list[int]] = []
    for version in sorted(versions - {0}):
        if found and found[-1][1] == version - 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found) or "none"


def advice(found: Diagnosis, committed: int | None, place: Place) -> tuple[str, int]:
    """What to do, and the exit status."""
    if found.purged:
        return (
            "It was purged within the last day. Call it back:\n"
            f"  {place.command('purge', '--recall')}",
            PROBLEMS_STATUS,
        )
    newest = found.newest_batch(at_most=committed)
    if place.folder is None and newest is not None:
        text = f"Batch {newest} is the newest that all partitions serve."
        return f"{text} Give --checkpoint to compare it with Spark's commit log.", 0
    if committed is None and place.folder is not None:
        return "Spark has committed no batch: the query begins at batch 0.", 0
    if newest is None:
        return _without_a_batch(found, committed, place), PROBLEMS_STATUS
    if newest == committed:
        return f"Batch {committed} is the newest of the commit log, and all partitions serve it.", 0
    return (
        f"The commit log ends with batch {committed}; batch {newest} is the newest that all "
        "partitions serve. Restore the Redis that held the others, or go back:\n"
        "  1. stop the query;\n"
        f"  2. {place.command('rewind', f'--to-batch {newest}', '--yes')}\n"
        "  3. start the query: it runs the later batches again, and the sink gets them twice.",
        PROBLEMS_STATUS,
    )


def _without_a_batch(found: Diagnosis, committed: int | None, place: Place) -> str:
    """The ways to recover, the best one first."""
    text = "No batch is served by all partitions."
    if not found.partitions:
        text = f"Redis has nothing of this checkpoint ({place.gen})."
    if committed is not None:
        text += f" The commit log ends with batch {committed}, so the state was there."
    copy = None if place.folder is None else newest_fitting(place.folder, place.gen)
    ways = [
        "Is it the right server, database and key prefix? What this one holds:\n"
        f"       redis-state queries {place.server}",
        "If Redis has a backup of its own (an RDB or AOF file), restart Redis from it.",
    ]
    if copy is not None:
        ways.append(
            f"The checkpoint has a copy of the state after batch {copy.batch}. Stop the query, "
            f"then\n       {place.command('restore', '--yes')}\n"
            "     and start it: it runs the later batches again, and the sink gets them twice."
        )
    ways.append(
        "Otherwise the state is gone: start the query with a new checkpoint. It begins with empty "
        "state; do not delete this folder before you know where its source will be read from again."
    )
    head = "Stop the query, and take the first of these that fits:"
    return "\n".join([text, head, *(f"  {at}. {way}" for at, way in enumerate(ways, 1))])
