"""`redis-state import`: brings the state of an export into a Redis that lacks it."""

from __future__ import annotations

import argparse
from contextlib import closing
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
from redis_state.cli.move.export import told
from redis_state.exports import Import, plan_import
from redis_state.exports.folder import ExportFolder
from redis_state.maintain.activity import refuse_if_used

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "import",
        help="load an exported state into a Redis that lacks it",
        description=(
            "Load the state that `redis-state export` wrote into a Redis that lacks it. Without "
            "--yes the command reads and checks all files, and only prints what it would do. "
            "Partitions that Redis still has are never replaced. An interrupted import can be run "
            "again. A query of Spark continues after the exported batch, so its logs must end "
            "with that batch: with --checkpoint newer entries are moved into a folder beside them."
        ),
        epilog=example(
            "redis-state import /backup/flights --checkpoint /data/flights "
            "--url redis://localhost:6379/0",
            "redis-state import /backup/cart --as cart-copy --url redis://localhost:6379/0 --yes",
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of the export, or a URL of it")
    add_checkpoint(parser)
    add_storage_options(parser)
    parser.add_argument(
        "--gen",
        help="the checkpoint's id from its marker file, if the folder was copied here from "
        "another file system; move the entries that the command names there, too",
    )
    parser.add_argument(
        "--as",
        dest="as_name",
        metavar="NAME",
        help="new name of a store that Python keeps, for an additional copy",
    )
    add_files(parser)
    add_yes(parser)
    add_force(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plans, prints the plan, and imports."""
    config = config_of(arguments)
    tenant, line = keys.tenant_of(config.key_prefix), ProgressLine()
    checkpoint = None if arguments.checkpoint is None else folder_of(arguments)
    with closing(Client(config)) as client:
        use_storage_options(client, arguments)
        try:
            plan = plan_import(
                client,
                ExportFolder(arguments.folder),
                name=arguments.as_name,
                checkpoint=checkpoint,
                marker_gen=arguments.gen,
                redis_memory=config.redis_memory,
                places_folder=config.places_folder,
                tenant=tenant,
                progress=line,
            )
            line.end()
            _tell(plan)
            if arguments.yes:
                what = "importing an export"
                for gen in plan.gens:
                    refuse_if_used(
                        client, gen, tenant=tenant, attempted=what, force=arguments.force
                    )
                plan.carry_out(client, line)
        finally:
            line.end()
    partitions = len(plan.missing)
    if not arguments.yes:
        print(f"{partitions} partitions would be imported; stop the query, then add --yes")
        return 0
    if partitions:
        print(f"{partitions} partitions were imported, and read again: the digests are the same")
    if plan.there:
        print(
            f"{plan.there} partitions were already there with that version, and were not read "
            "again: `redis-state maintain --once` verifies them"
        )
    return 0


def _tell(plan: Import) -> None:
    for text in told(plan.export):
        print(text)
    if plan.there:
        print(f"{plan.there} partitions already have this version")
    if plan.missing:
        where = "to Redis"
        if plan.places is not None:
            where = f"into files in {plan.places.folder}, and into Redis of small partitions"
        print(f"about {plan.stored:,} bytes go {where}")
    for store in plan.set_back:
        print(f"store {store.name[:80]!r}: batch {store.newest} -> {plan.export.batch}")
    if plan.rewind is not None:
        for name in plan.rewind.files:
            print(f"{name} -> {plan.rewind.folder}/{name}")
    elif plan.export.batch is not None:
        batch = plan.export.batch
        print(
            f"the newest entry of the checkpoint's offsets and commits has to be {batch} before "
            "the query starts: give --checkpoint, or move newer ones away"
        )
