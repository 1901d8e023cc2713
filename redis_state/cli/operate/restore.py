"""`redis-state restore`: brings state back from a copy in the checkpoint folder."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import (
    add_checkpoint,
    add_storage_options,
    folder_of,
    use_storage_options,
)
from redis_state.cli.arguments.connection import (
    ProgressLine,
    add_arguments,
    add_files,
    config_of,
)
from redis_state.cli.arguments.consent import add_force, add_yes
from redis_state.cli.help import example
from redis_state.maintain.activity import refuse_if_used
from redis_state.recovery.copies import Copy, plan_restore
from redis_state.recovery.marker import gen_of

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "restore",
        help="restore lost state from a copy in the checkpoint folder",
        description=(
            "Restore the state of a stopped query in a Redis that has lost it, from a copy that "
            "the option copyEveryBatches made. Newer entries of the checkpoint's logs are moved "
            "into a folder beside them; the query runs those batches again. Without --yes the "
            "command reads and checks the copy, and only prints what it would do. Partitions that "
            "Redis still has are never replaced."
        ),
        epilog=example(
            "redis-state restore --url redis://localhost:6379/0 --checkpoint /data/flights"
        ),
    )
    add_checkpoint(parser, required=True)
    add_storage_options(parser)
    parser.add_argument(
        "--to-batch", type=int, metavar="N", help="the copy of this batch instead of the newest one"
    )
    parser.add_argument(
        "--gen",
        help="the checkpoint's id from its marker file, if this is a copy of the folder; move the "
        "entries that the command names in the original, too",
    )
    parser.add_argument(
        "--into-redis",
        action="store_true",
        help="bring all state back into Redis; without it the query reads the copy's files, or "
        "new ones in its placesFolder, until its own snapshots replace them",
    )
    add_files(parser)
    add_yes(parser)
    add_force(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plans, prints the plan, and restores."""
    config = config_of(arguments)
    folder = folder_of(arguments)
    gen = arguments.gen or gen_of(folder)
    tenant, line = keys.tenant_of(config.key_prefix), ProgressLine()
    with closing(Client(config)) as client:
        use_storage_options(client, arguments)
        try:
            plan = plan_restore(
                client,
                folder,
                gen,
                to_batch=arguments.to_batch,
                to_redis=arguments.into_redis,
                redis_memory=config.redis_memory,
                places_folder=config.places_folder,
                tenant=tenant,
                progress=line,
            )
            line.end()
            for one in plan.gens if arguments.yes else ():
                what, force = "restoring a copy", arguments.force
                refuse_if_used(client, one, tenant=tenant, attempted=what, force=force)
            print(_told(plan.copy))
            if plan.places is not None:
                print(f"its files are written again in {plan.places.folder}")
            if plan.there:
                print(f"{plan.there} partitions already have this version")
            for store in plan.set_back:
                print(f"store {store.name[:80]!r}: batch {store.newest} -> {plan.copy.batch}")
            for name in plan.rewind.files:
                print(f"{name} -> {plan.rewind.folder}/{name}")
            if arguments.yes:
                plan.carry_out(client, line)
        finally:
            line.end()
    partitions, files = len(plan.missing), len(plan.rewind.files)
    if arguments.yes:
        print(
            f"{partitions} partitions were restored, {files} files were moved; batch "
            f"{plan.copy.batch} is the newest now"
        )
    else:
        print(
            f"{partitions} partitions would be restored, {files} files would be moved; stop the "
            "query, then add --yes"
        )
    return 0


def _told(copy: Copy) -> str:
    made = datetime.fromtimestamp(copy.created_ms / 1000, timezone.utc)
    return (
        f"copy of the state after batch {copy.batch}: {len(copy.parts)} partitions, "
        f"{copy.bytes:,} bytes, made {made:%Y-%m-%d %H:%M:%S} UTC"
    )
