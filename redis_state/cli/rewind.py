"""`redis-state rewind`: go back to an older batch of a checkpoint."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.cli.checkpoint import add_checkpoint, add_storage_options, folder_of
from redis_state.cli.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.errors import Kind, StateError, UsageError
from redis_state.maintain.activity import refuse_if_used
from redis_state.recovery.doctor import diagnose
from redis_state.recovery.marker import marker_of
from redis_state.recovery.rewind import newest_commit, plan_rewind

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers
    from redis_state.files import Folder


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "rewind",
        help="take the newest batches out of a checkpoint's logs",
        description="Make an older batch the newest one of a stopped query's checkpoint. Newer "
        "entries of its logs are moved into a folder beside them; the query runs those batches "
        "again. Without --yes it only says what it would move. Redis is not changed: the next "
        "run of the query leaves the abandoned versions behind.",
        epilog=example(
            "redis-state rewind --url redis://localhost:6379/0 --checkpoint /data/flights "
            "--to-batch 41"
        ),
    )
    add_checkpoint(parser, required=True)
    add_storage_options(parser)
    parser.add_argument("--to-batch", required=True, type=int, metavar="N", help="the newest then")
    parser.add_argument(
        "--gen",
        help="the checkpoint's id from its marker file, if this is a copy of the folder; move the "
        "entries that the command names in the original, too",
    )
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument("--force", action="store_true", help="even if the query seems to run")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan, check that Redis can serve it, and move."""
    config = config_of(arguments)
    folder = folder_of(arguments)
    gen = arguments.gen or _gen_for(folder, arguments.to_batch)
    plan = plan_rewind(folder, arguments.to_batch)
    tenant, what = keys.tenant_of(config.key_prefix), f"rewinding to batch {arguments.to_batch}"
    with closing(Client(config)) as client:
        found = diagnose(client, gen, tenant=tenant)
        if arguments.yes:
            refuse_if_used(client, gen, tenant=tenant, attempted=what, force=arguments.force)
    if found.purged:
        raise purged_error(what, gen, where=str(folder))
    if arguments.to_batch + 1 not in found.common:
        newest = found.newest_batch(at_most=newest_commit(folder))
        raise StateError(
            what,
            kind=Kind.STATE_LOST,
            found="not all partitions have the state after it",
            advice="No batch can be served; nothing was moved. `redis-state doctor` says how to "
            "go on."
            if newest is None
            else f"Nothing was moved. The newest that all of them serve is batch {newest}: give "
            f"--to-batch {newest}.",
            where=str(folder),
        )
    for name in plan.files:
        print(f"{name} -> {plan.folder}/{name}")
    if arguments.yes:
        plan.carry_out()
        print(f"batch {plan.to_batch} is the newest now; {len(plan.files)} files were moved")
    else:
        print(f"{len(plan.files)} files would be moved; stop the query, then add --yes")
    return 0


def _gen_for(folder: Folder, to_batch: int) -> str:
    """The id of the checkpoint, if it is the one that the batch has written."""
    marker = marker_of(folder)
    if marker.since is not None and to_batch < marker.since:
        raise UsageError(
            f"rewinding to batch {to_batch}",
            found=f"batch {marker.since} changed the number of partitions, and what was before is "
            "not in the state any more",
            advice=f"Nothing was moved. Give --to-batch {marker.since} or a later one.",
            where=str(folder),
        )
    return marker.gen
