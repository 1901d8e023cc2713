"""`redis-state plan`: prints what a query will need, before it runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any

from redis_state.cli.help import example
from redis_state.status.capacity import CapacityPlan, Workload, plan, proposals
from redis_state.status.figures import size

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_ROWS_MAX = 10**13
_DEFAULTS = {one.name: one.default for one in fields(Workload)}
_WIDTH = 13


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "plan",
        help="print memory, network, CPU and connections that a query will need",
        description="Print what a query needs once retention has set in: memory, network, CPU and "
        "connections of Redis, memory of executors, and settings to begin with. No server is "
        "asked. docs/capacity.md has the formulas.",
        epilog=example(
            "redis-state plan --rows 1000000 --row-bytes 56 --updates-per-batch 50000 "
            "--batches-per-minute 6"
        ),
    )
    _add(parser, "rows", _number(0, _ROWS_MAX), "live rows of the state")
    _add(
        parser,
        "row-bytes",
        _amount(1, 64 << 20),
        "bytes of the key and the value of a row, uncompressed",
    )
    _add(
        parser,
        "updates-per-batch",
        _amount(0, _ROWS_MAX),
        "changed rows of a batch, removals included",
        to="updates",
    )
    _add(parser, "batches-per-minute", _amount(0.001, 60_000), "batches of the query in a minute")
    for name, kind, meaning in _OPTIONAL:
        _add(parser, name, kind, meaning)
    parser.add_argument(
        "--ordered",
        action="store_true",
        help="rows are kept in key order: stores of Python, timers, rows by event time",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan."""
    given = {one.name: getattr(arguments, one.name) for one in fields(Workload)}
    work = Workload(**given)
    found = plan(work)
    lines = _as_json(work, found) if arguments.json else _as_text(work, found)
    print("\n".join(lines))
    return 0


def _as_json(work: Workload, found: CapacityPlan) -> Iterator[str]:
    members: dict[str, Any] = {"workload": asdict(work)}
    for name, value in asdict(found).items():
        members[name] = _rounded(value)
    members["proposals"] = list(proposals(work, found))
    yield json.dumps(members)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _as_text(work: Workload, found: CapacityPlan) -> Iterator[str]:
    kept = found.memory_bytes - found.live_bytes - found.dropped_bytes
    rates = found.network_in_bytes_s, found.network_out_bytes_s
    received, sent = (f"{_size(one)}/s" for one in rates)
    yield from (
        f"{name:{_WIDTH}}{text}"
        for name, text in (
            ("memory", f"{_size(found.memory_bytes)} in Redis"),
            ("", f"  {_size(found.live_bytes)} newest snapshots"),
            ("", f"  {_size(kept)} {work.versions_to_retain} kept versions, and manifests"),
            ("", f"  {_size(found.dropped_bytes)} dropped in the last ten minutes"),
            ("network", f"{received} into the server, {sent} out of it"),
            ("server", f"{found.server_cores:.1%} of a core, {found.commits_s:,.1f} commits/s"),
            ("connections", f"{found.connections} at most"),
            ("executors", f"{_size(found.local_bytes)} of state in each of {work.executors}"),
            ("", f"{found.executor_cores:.1%} of a core of all together for it"),
        )
    )
    yield "begin with"
    yield from (f"  {one}" for one in proposals(work, found))


def _size(number: float) -> str:
    return size(round(number))


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    kind: Callable[[str], float],
    meaning: str,
    *,
    to: str = "",
) -> None:
    to = to or name.replace("-", "_")
    default = _DEFAULTS[to]
    required = default is MISSING
    parser.add_argument(
        f"--{name}",
        dest=to,
        type=kind,
        required=required,
        default=None if required else default,
        metavar="N",
        help=meaning if required else f"{meaning} (default: {default:g})",
    )


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is not {least:,} to {most:,}")
        return found

    return parse


def _amount(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is not {least:g} to {most:g}")
        return found

    return parse


_OPTIONAL: tuple[tuple[str, Callable[[str], float], str], ...] = (
    (
        "compression",
        _amount(0.001, 2),
        "bytes of a row in Redis, as a part of --row-bytes",
    ),
    ("versions-to-retain", _number(2, 10_000), "the option versionsToRetain"),
    ("partitions", _number(1, 65_536), "partitions of the state"),
    ("stores", _number(1, 64), "stores of a partition: 4 for joins in state format 1 or 2"),
    ("executors", _number(1, 100_000), "executors"),
    ("cores", _number(1, 1_024), "cores of an executor"),
    ("maintenance-s", _amount(1, 86_400), "seconds of Spark's maintenanceInterval"),
)
