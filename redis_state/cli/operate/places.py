"""`redis-state places`: shows where the bytes of a query are, and looks after its files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import (
    add_checkpoint,
    add_storage_options,
    open_folder,
    use_storage_options,
)
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, column, numbers
from redis_state.errors import ConfigError
from redis_state.files import Folder
from redis_state.ids import PartitionId
from redis_state.live import Reader
from redis_state.maintain.files import (
    Guard,
    PartitionPlaces,
    SweptFiles,
    bring_all_back,
    is_of_python,
    look_at_places,
    partitions_with,
    places_needed,
    sweep_files,
    verify_files,
)
from redis_state.places import Places
from redis_state.places.settings import FOLDER_IN_CHECKPOINT
from redis_state.protocol.registry import QueryInfo
from redis_state.recovery.deleting import LogGuard
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "places",
        help="show which bytes are in Redis and which in files, and look after the files",
        description="Show where the bytes of a query are: in Redis, in files (history=files, "
        "redisMemory), or at the parent of a fork. The options verify the files, bring all of them "
        "back into Redis, or find files that nothing needs. Files are deleted by --sweep, and by "
        "the maintenance of a Spark query; both only with the query's option placesDelete=true, "
        "and only after placesGrace.",
        epilog=example(
            "redis-state places flights --url redis://localhost:6379/0",
            "redis-state places flights --verify --deep",
            "redis-state places flights --sweep --checkpoint /data/flights",
            "redis-state places flights --bring-back",
            before=f"Exit status: 0 all is well, 1 an error, {PROBLEMS_STATUS} problems were "
            "found, one a line on standard error.",
        ),
    )
    add_query(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--verify", action="store_true", help="look for every file")
    which.add_argument(
        "--bring-back",
        action="store_true",
        help="bring all segments back into Redis, and move no more; files stay until they are due",
    )
    which.add_argument(
        "--sweep",
        action="store_true",
        help="find files that nothing needs, and delete those that are due",
    )
    parser.add_argument(
        "--exclusive",
        action="store_true",
        help="with --sweep: confirm that no other copy of Redis and checkpoint uses the folder of "
        "the files, where that is not below --checkpoint",
    )
    parser.add_argument(
        "--deep", action="store_true", help="with --verify: also read and check every block"
    )
    add_checkpoint(parser)
    add_storage_options(parser)
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints where the bytes are, after the step that was asked for."""
    if arguments.deep and not arguments.verify:
        raise ConfigError("examining files", found="--deep needs --verify", advice="Give both.")
    if arguments.exclusive and not arguments.sweep:
        raise ConfigError("examining files", found="--exclusive needs --sweep", advice="Give both.")
    config = config_of(arguments)
    tenant = keys.tenant_of(config.key_prefix)
    problems: list[str] = []
    notes: list[str] = []
    with Reader(config) as reader:
        info, client = reader.query(arguments.query).info, reader.client
        use_storage_options(client, arguments)
        ids = partitions_with(client, info.gen, tenant=tenant)
        if arguments.verify:
            for id_ in ids:
                problems += verify_files(client, id_, deep=arguments.deep)
            notes.append(f"{len(ids)} partitions verified, {len(problems)} problems.")
        elif arguments.bring_back:
            line = ProgressLine()
            count = bring_all_back(client, info.gen, ids, tenant=tenant, progress=line)
            line.end()
            notes.append(
                f"{count} segments are back in Redis. Leave out history=files at the next start: "
                "otherwise they leave again."
            )
        elif arguments.sweep:
            found = _sweep(client, arguments, info, ids, tenant)
            problems += found.kept
            notes.append(_swept(found, places_needed(client, info.gen, tenant=tenant)))
        rows = [_row(look_at_places(client, id_)) for id_ in ids]
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    printing.emit(arguments, Sheet(rows, _COLUMNS, notes=notes))
    return PROBLEMS_STATUS if problems else 0


def _sweep(
    client: Client,
    arguments: argparse.Namespace,
    info: QueryInfo,
    ids: Sequence[PartitionId],
    tenant: str,
) -> SweptFiles:
    places = places_needed(client, info.gen, tenant=tenant)
    of_python = is_of_python(client, info.gen, tenant=tenant)
    guard = _logless if of_python else _guard(client, arguments, places)
    found = SweptFiles()
    for id_ in ids:
        swept = sweep_files(
            client,
            id_,
            places,
            guard=guard,
            delete=places.deletes,
            unknown_too=not of_python,
        )
        found.add(swept)
    return found


def _logless(_id: PartitionId) -> str:
    """Allows a deletion. A store of Python has no log to compare with."""
    return ""


def _guard(client: Client, arguments: argparse.Namespace, places: Places) -> Guard:
    """Returns the check before a deletion of a Spark query's files."""
    address = arguments.checkpoint or places.folder.removesuffix(f"/{FOLDER_IN_CHECKPOINT}")
    if address == places.folder:
        return lambda _id: "give the query's folder with --checkpoint, to compare with its log"
    checkpoint = open_folder(arguments, address)
    if not arguments.exclusive and not _is_below(places.folder, checkpoint):
        reason = (
            f"the files are in {places.folder}, which is not below {checkpoint}: a copy of this "
            "Redis and checkpoint may use them, too. If none does, give --exclusive"
        )
        return lambda _id: reason
    return LogGuard(client, checkpoint)


def _is_below(address: str, folder: Folder) -> bool:
    """Returns whether an address as Hadoop writes it is of a folder below another one."""
    return any(address.startswith(f"{one.rstrip('/')}/") for one in folder.spellings())


def _swept(found: SweptFiles, places: Places) -> str:
    due = f"{found.deleted} deleted" if places.deletes else f"{found.due} would be deleted"
    return (
        f"{found.condemned} files condemned now, {found.waiting} condemned before and younger than "
        f"placesGrace, {due} ({figures.size(found.bytes)})."
    )


def _row(one: PartitionPlaces) -> dict[str, Any]:
    of = one.id.store
    files: dict[str, int] = {"n": 0, "u": 0, "d": 0}
    for row in one.rows:
        files[row.state] = files.get(row.state, 0) + 1
    return {
        "operator": of.operator,
        "store": of.store,
        "partition": one.id.partition,
        "redis_segments": one.redis[0],
        "redis_bytes": one.redis[1],
        "file_segments": one.files[0],
        "file_bytes": one.files[1],
        "parent_bytes": one.parent[1],
        "share": one.bound.share if one.bound else None,
        "share_bytes": one.bound.bytes if one.bound else None,
        "oldest_in_files": one.oldest or None,
        "files_used": files["u"],
        "files_announced": files["n"],
        "files_condemned": files["d"],
    }


def _share(row: PrintedRow) -> str:
    """Returns how much of its share a partition uses."""
    if not row["share"]:
        return figures.NOTHING
    return f"{row['share_bytes'] / row['share']:.0%} of {figures.size(row['share'])}"


_COLUMNS = (
    numbers("operator", title="OP"),
    column("store"),
    numbers("partition", title="PART"),
    numbers("redis_bytes", figures.size, title="REDIS"),
    Column("SHARE", _share),
    numbers("file_bytes", figures.size, title="FILES"),
    numbers("parent_bytes", figures.size, title="PARENT"),
    numbers("oldest_in_files", title="OLDEST"),
    numbers("files_used", title="USED"),
    numbers("files_condemned", title="CONDEMNED"),
)
