"""`redis-state doctor`: what Redis holds of a checkpoint, and how the query can go on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.maintain import PROBLEMS_STATUS
from redis_state.cli.marker import gen_of, local_path
from redis_state.copies import newest_fitting
from redis_state.doctor import Diagnosis, PartitionHealth, diagnose
from redis_state.rewind import newest_commit

if TYPE_CHECKING:
    from redis_state.cli.registry import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what Redis holds of a checkpoint and how the query can go on",
        description="Look at every partition of a checkpoint, change nothing, and name the newest "
        "batch that all of them can serve and the steps to go on from there.",
        epilog=f"Exit status: 0 the query can go on, 1 an error, {PROBLEMS_STATUS} something is "
        "to be done first.",
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="PATH", help="in the local file system"
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found."""
    config = config_of(arguments)
    gen = gen_of(arguments.checkpoint)
    committed = newest_commit(local_path(arguments.checkpoint))
    line = ProgressLine()
    with closing(Client(config)) as client:
        try:
            found = diagnose(client, gen, tenant=keys.tenant_of(config.key_prefix), progress=line)
        finally:
            line.end()
    for text in report(found):
        print(text)
    steps, status = advice(found, committed, arguments.checkpoint)
    print(steps)
    if status and not found.purged and found.newest_batch(at_most=committed) is None:
        copy = newest_fitting(local_path(arguments.checkpoint))
        if copy is not None:
            print(_way_back(copy.batch, arguments.checkpoint))
    return status


def _way_back(batch: int, checkpoint: str) -> str:
    return (
        f"The checkpoint has a copy of the state behind batch {batch}:\n"
        "  1. stop the query;\n"
        f"  2. redis-state restore --checkpoint {checkpoint} --url … --yes\n"
        "  3. start the query: it runs the later batches again, and the sink gets them twice."
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


def advice(found: Diagnosis, committed: int | None, checkpoint: str) -> tuple[str, int]:
    """What to do, and the exit status."""
    if not found.partitions:
        return "Redis has no stateful operator of this checkpoint.", PROBLEMS_STATUS
    if found.purged:
        return (
            "It was purged within the last day. Call it back by `redis-state purge --recall "
            f"--checkpoint {checkpoint} --url …`.",
            PROBLEMS_STATUS,
        )
    if committed is None:
        return "Spark has committed no batch: the query begins at batch 0.", 0
    newest = found.newest_batch(at_most=committed)
    if newest == committed:
        return f"Batch {committed} is the newest of the commit log, and all partitions serve it.", 0
    if newest is None:
        return (
            "No batch is served by all partitions. Restore the Redis that held them, or start "
            "with a new checkpoint.",
            PROBLEMS_STATUS,
        )
    return (
        f"The commit log ends with batch {committed}; batch {newest} is the newest that all "
        "partitions serve. Restore the Redis that held the others, or go back:\n"
        "  1. stop the query;\n"
        f"  2. redis-state rewind --checkpoint {checkpoint} --to-batch {newest} --url … --yes\n"
        "  3. start the query: it runs the later batches again, and the sink gets them twice.",
        PROBLEMS_STATUS,
    )
