"""`redis-state queries`: the queries that keep state in a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from redis_state.cli.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.protocol.registry import newest_of_folder
from redis_state.reader import QueryInfo, Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_SHOWN = ("gen", "id", "name", "created_ms", "seen_ms")


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "queries",
        help="list the queries that keep state in a server",
        description="Print one JSON object a line for each checkpoint, the newest last. "
        "'replaced_by' stands at one whose folder was deleted and created again: `redis-state "
        "purge --gen` removes its state.",
        epilog=example("redis-state queries --url redis://localhost:6379/0"),
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the queries."""
    with Reader(config_of(arguments)) as reader:
        queries = sorted(reader.queries(), key=lambda one: one.created_ms)
        for info in queries:
            print(json.dumps(_shown(info, queries), ensure_ascii=False))
    return 0


def _shown(info: QueryInfo, queries: Sequence[QueryInfo]) -> dict[str, Any]:
    shown = {one.name: getattr(info, one.name) for one in fields(info) if one.name in _SHOWN}
    newest = newest_of_folder(queries, info)
    return shown if newest is info else {**shown, "replaced_by": newest.gen}
