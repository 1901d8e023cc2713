"""`redis-state rewind`: goes back to an older batch of a checkpoint."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.cli.arguments.checkpoint import (
    add_checkpoint,
    add_storage_options,
    add_stores,
    folder_of,
    words_of,
)
from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.consent import add_force, add_yes
from redis_state.cli.help import example
from redis_state.errors import ConfigError, Kind, StateError, UsageError
from redis_state.maintain.activity import refuse_if_used
from redis_state.maintain.purge import check_gen
from redis_state.recovery.doctor import Diagnosis, diagnose
from redis_state.recovery.kept_batch import kept_batch
from redis_state.recovery.query_state import QueryState, state_of
from redis_state.recovery.rewind import plan_rewind, startable_batches

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers
    from redis_state.files import Folder


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "rewind",
        help="go back to an older batch of a checkpoint",
        description="Make an older batch the newest one of a stopped query's checkpoint. Newer "
        "entries of its logs are moved into a folder beside them, and the Python stores that the "
        "query writes are set to that batch; the query runs the later ones again. Without --yes "
        "the command only prints what it would do. No state is removed: the next run of the query "
        "leaves the abandoned versions behind.",
        epilog=example(
            "redis-state rewind --url redis://localhost:6379/0 --checkpoint /data/flights "
            "--to-batch 41",
            "redis-state rewind --url redis://localhost:6379/0 --checkpoint /data/flights --to "
            "before-deploy",
            "redis-state rewind visits --to-batch 41 --url redis://localhost:6379/0",
        ),
    )
    add_checkpoint(parser)
    add_storage_options(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--to-batch", type=int, metavar="N", help="the batch to go back to")
    which.add_argument(
        "--to", metavar="NAME", help="go back to the batch of a kept version, if the logs have it"
    )
    parser.add_argument(
        "--gen",
        help=(
            "the checkpoint's id from its marker file, if this is a copy of the folder (move the "
            "entries that the command names in the original, too); or the id of a Python store"
        ),
    )
    add_stores(parser)
    add_yes(parser)
    add_force(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plans, checks that Redis serves the batch, sets the stores, and moves log entries."""
    config = config_of(arguments)
    tenant = keys.tenant_of(config.key_prefix)
    folder = None if arguments.checkpoint is None else folder_of(arguments)
    if arguments.gen is not None:
        check_gen(arguments.gen, attempted="rewinding")
    with closing(Client(config)) as client:
        state = _state_of(client, folder, arguments, tenant=tenant)
        found = diagnose(client, *state.gens, tenant=tenant)
        if arguments.to is None:
            batch = arguments.to_batch
        else:
            batch = kept_batch(client, arguments.to, state, folder, found, tenant=tenant)
        what = f"rewinding to batch {batch}"
        _check_since(state, batch, folder)
        plan = None if folder is None else plan_rewind(folder, batch)
        for gen in state.gens if arguments.yes else ():
            refuse_if_used(client, gen, tenant=tenant, attempted=what, force=arguments.force)
        for gen in found.purged:
            raise purged_error(what, gen, where=arguments.checkpoint or "")
        if not found.serves(batch):
            place = shlex.join([*arguments.stores, *words_of(arguments, gen=arguments.gen)])
            raise _unserved(what, found, state, folder, place=place)
        changes = state.changes(batch)
        for text in changes:
            print(text)
        files = 0 if plan is None else len(plan.files)
        if plan is not None:
            for name in plan.files:
                print(f"{name} -> {plan.folder}/{name}")
        if not arguments.yes:
            print(_counted("would be", files, len(changes)) + "; stop the query, then add --yes")
            return 0
        # Stores first: a query that starts in between is refused, and the command works again.
        state.set_to(client, batch, tenant=tenant)
    if plan is not None:
        plan.carry_out()
    print(f"batch {batch} is the newest now; {_counted('were', files, len(changes))}")
    return 0


def _state_of(
    client: Client, folder: Folder | None, arguments: argparse.Namespace, *, tenant: str
) -> QueryState:
    """Returns the location of the state, after a check that it can be set back."""
    what = "rewinding" if arguments.to_batch is None else f"rewinding to batch {arguments.to_batch}"
    if folder is None and arguments.gen is None and not arguments.stores:
        raise ConfigError(
            what,
            found="no checkpoint is named",
            advice=(
                "Give the query's folder with --checkpoint, or the name of a Python store that no "
                "query of Spark writes."
            ),
        )
    state = state_of(client, folder, gen=arguments.gen, names=arguments.stores, tenant=tenant)
    queries = {one.query_id for one in state.stores} - {""}
    if folder is None and arguments.stores and not state.stores:
        raise ConfigError(
            what,
            found="it is a single store, whose versions are not batches",
            advice="Open the older version in a run that is registered by a driver: "
            "docs/python-store.md. Nothing was changed.",
        )
    if folder is None and (queries or not state.stores):
        of = (
            f"it is written by the query {min(queries)}"
            if queries
            else "it belongs to a query of Spark"
        )
        raise ConfigError(
            what,
            found=f"{of}, whose logs have to be set back as well",
            advice="Give the query's folder with --checkpoint. Nothing was changed.",
        )
    return state


def _check_since(state: QueryState, batch: int, folder: Folder | None) -> None:
    """Refuses a batch before the last change of the number of partitions."""
    if batch < state.since:
        raise UsageError(
            f"rewinding to batch {batch}",
            found=(
                f"batch {state.since} changed the number of partitions, and the state no longer "
                "has what was before"
            ),
            advice=f"Nothing was moved. Give --to-batch {state.since} or a later one.",
            where=str(folder),
        )


def _unserved(
    what: str, found: Diagnosis, state: QueryState, folder: Folder | None, *, place: str
) -> StateError:
    among = None
    if folder is not None:
        among = {batch for batch in startable_batches(folder) if batch >= state.since}
    newest = found.newest_batch(among=among)
    return StateError(
        what,
        kind=Kind.STATE_LOST,
        found="not all partitions have the state after it",
        advice=(
            f"No batch can be served; nothing was moved. `redis-state doctor {place}` prints how "
            "to continue."
        )
        if newest is None
        else f"Nothing was moved. The newest batch that all partitions can serve is {newest}: give "
        f"--to-batch {newest}.",
        where="" if folder is None else str(folder),
    )


def _counted(verb: str, files: int, stores: int) -> str:
    text = f"{files} files {verb} moved"
    return f"{text} and {stores} stores set" if stores else text
