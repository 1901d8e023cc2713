"""`redis-state top`: shows the queries of a server, renewed until a key is pressed."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.cli.look.queries import row_of, state_of
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, numbers
from redis_state.clock import SYSTEM
from redis_state.errors import ConfigError
from redis_state.live import Reader
from redis_state.reader import QueryStatus
from redis_state.status import figures

if TYPE_CHECKING:
    from rich.console import RenderableType

    from redis_state.cli.command import Subparsers

_INTERVAL_S = 2.0
_INTERVAL_MAX_S = 86_400
_INTERVAL_MIN_S = 0.5
_QUIT = (b"q", b"Q")
_SORTS: dict[str, Callable[[PrintedRow], object]] = {
    "bytes": lambda row: -row["bytes"],
    "rows": lambda row: -row["rows"],
    "written": lambda row: -row["written_ms"],
    "name": lambda row: (row["name"] or row["id"], row["created_ms"]),
}


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "top",
        help="watch the queries of a server",
        description="Show the queries of a server in a table that is renewed; q or Ctrl-C ends it. "
        "BATCH is the newest confirmed batch, LAG the number of batches published above it, ROWS/S "
        "the change of the number of keys, AGE the time since the last write, to the minute.",
        epilog=example(
            "redis-state top --url redis://localhost:6379/0",
            "redis-state top --once --sort rows --profile production",
        ),
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"time between two tables (default: {_INTERVAL_S:g}, at least {_INTERVAL_MIN_S:g})",
    )
    parser.add_argument(
        "--sort",
        choices=tuple(_SORTS),
        default="bytes",
        help="the order of the queries (default: bytes)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and exit")
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints one table, or renews it until the user ends it."""
    if not _INTERVAL_MIN_S <= arguments.interval <= _INTERVAL_MAX_S:
        raise ConfigError(
            "watching the queries",
            found="--interval is too short or too long",
            advice=f"Give {_INTERVAL_MIN_S:g} to {_INTERVAL_MAX_S} seconds.",
        )
    live = sys.stdout.isatty() and not arguments.once
    if live and arguments.format != printing.JSON:
        with suppress(KeyboardInterrupt):
            _watch(arguments)
        return 0
    if not arguments.once:
        raise ConfigError(
            "watching the queries",
            found="standard output is not a terminal, or JSON was requested",
            advice="Give --once.",
        )
    with Reader(config_of(arguments)) as reader:
        look = QueriesNow(reader.status(), None)
    if arguments.format == printing.JSON:
        printing.emit(arguments, Sheet(look.rows(arguments.sort)))
    else:
        printing.show(printing.console_of(), look.sheet(arguments.sort))
    return 0


class QueriesNow:
    """Status of all queries at one moment, with the status before it for rates."""

    def __init__(self, found: list[QueryStatus], before: QueriesNow | None) -> None:
        self._found = found
        self._before = {} if before is None else {one.gen: one for one in before._found}

    def rows(self, sort: str) -> list[PrintedRow]:
        """Returns a row for each query; the rate is ``None`` without an earlier status."""
        rows = [{**row_of(one), "rows_per_s": self._rate(one)} for one in self._found]
        return sorted(rows, key=_SORTS[sort])  # type: ignore[arg-type]  # keys of one kind each

    def sheet(self, sort: str) -> Sheet:
        """Returns the table, with the sums as its title."""
        rows = self.rows(sort)
        alive = sum(bool(row["alive"]) for row in rows)
        total = sum(row["bytes"] for row in rows)
        named = "query" if len(rows) == 1 else "queries"
        title = f"{len(rows):,} {named}, {alive} alive, {figures.size(total)}"
        problems = [text for row in rows for text in row["problems"]]
        return Sheet(rows, COLUMNS, title=title, notes=problems[:3])

    def _rate(self, one: QueryStatus) -> float | None:
        before = self._before.get(one.gen)
        if before is None or one.now_ms <= before.now_ms:
            return None
        return (one.rows - before.rows) * 1000 / (one.now_ms - before.now_ms)


def _watch(arguments: argparse.Namespace) -> None:
    console = printing.console_of()
    from rich.live import Live

    with Reader(config_of(arguments)) as reader, _keys() as key:
        look = QueriesNow(reader.status(), None)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(look, arguments, console.height), refresh=True)
                if _ended(key, arguments.interval):
                    return
                look = QueriesNow(reader.status(), look)


def _screen(look: QueriesNow, arguments: argparse.Namespace, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    sheet = look.sheet(arguments.sort)
    rows = list(sheet.rows)
    # The title, the heading, the notes and the last line.
    room = max(1, height - 3 - len(sheet.notes))
    last = "q ends"
    if len(rows) > room:
        last += f"; {len(rows) - room} more queries"
    return Group(
        Text(sheet.title, style="bold", no_wrap=True, overflow="ellipsis"),
        printing.table_of(COLUMNS, rows[:room]),
        *(Text(figures.plain(note), no_wrap=True, overflow="ellipsis") for note in sheet.notes),
        Text(last, style="dim"),
    )


@contextmanager
def _keys() -> Iterator[int | None]:
    """Yields standard input without line buffering and echo; ``None`` if it is not a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield number
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _ended(key: int | None, seconds: float) -> bool:
    """Waits for the interval; returns True at once if the user presses q."""
    end_s = SYSTEM.monotonic_s() + seconds
    while (left_s := end_s - SYSTEM.monotonic_s()) > 0:
        if key is None:
            SYSTEM.sleep_s(left_s)
        elif select.select([key], [], [], left_s)[0]:
            pressed = os.read(key, 1)
            if pressed in _QUIT or not pressed:
                return True
    return False


def _lag(row: PrintedRow) -> str:
    confirmed, newest = row["confirmed_batch"], row["newest_batch"]
    if newest is None:
        return figures.NOTHING
    return figures.count(newest - (-1 if confirmed is None else confirmed))


def _rate(row: PrintedRow) -> str:
    rate = row["rows_per_s"]
    if rate is None:
        return figures.NOTHING
    return f"{'-' if rate < 0 else ''}{figures.amount(round(abs(rate)))}"


def _written(row: PrintedRow) -> str:
    at_ms = row["written_ms"]
    return figures.span(row["now_ms"] - at_ms) if at_ms else figures.NOTHING


COLUMNS = (
    Column("QUERY", lambda row: figures.plain(row["name"] or row["id"]), shrinks=True),
    Column("STATE", state_of),
    numbers("confirmed_batch", title="BATCH"),
    Column("LAG", _lag, right=True),
    numbers("rows", figures.amount),
    Column("ROWS/S", _rate, right=True),
    numbers("bytes", figures.size),
    Column("SERVED", lambda row: f"{row['served']}/{row['partitions']}", right=True),
    Column("AGE", _written, right=True),
)
