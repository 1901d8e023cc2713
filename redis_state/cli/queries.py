"""`redis-state queries`: what queries keep state in a server."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from redis_state.cli.connection import add_arguments, options_of
from redis_state.reader import QueryInfo, connect

if TYPE_CHECKING:
    from redis_state.cli.registry import Subparsers

_SHOWN = ("gen", "id", "name", "created_ms", "seen_ms")


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "queries",
        help="list the queries that keep state in a server",
        description="Print one JSON object a line for each checkpoint, the newest last.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the queries."""
    with connect(arguments.url, **options_of(arguments)) as reader:
        for info in sorted(reader.queries(), key=lambda one: one.created_ms):
            print(json.dumps(_shown(info), ensure_ascii=False))
    return 0


def _shown(info: QueryInfo) -> dict[str, Any]:
    return {one.name: getattr(info, one.name) for one in fields(info) if one.name in _SHOWN}
