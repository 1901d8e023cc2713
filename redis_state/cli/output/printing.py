"""Printers of rows: tables for people, JSON lines for scripts, files of rows for programs.

A command prints rows, which are mappings. On a terminal they become a table, anywhere else one JSON
object a line; `--format` and `--json` choose otherwise. A table rounds numbers and may leave out
members. JSON has all members, exact.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from redis_state.cli.output.plain_table import PlainColumn, lines_of
from redis_state.cli.output.state_types import Types
from redis_state.errors import ConfigError
from redis_state.rows.arrow_types import arrow_array
from redis_state.rows.json_values import to_json
from redis_state.status import figures
from redis_state.types.schema import Array, Struct, Type

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

TABLE, JSON, CSV, PARQUET = "table", "json", "csv", "parquet"
_INSTALL = "Run `pip install 'redis-state[cli]'`"
_TABLE_ROWS_MAX = 10_000
_SHRUNK = 10
_PLAIN_CELL = re.compile(r'[^",\r\n]+')

PrintedRow = Mapping[str, Any]
CellText = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        title: The heading.
        show: Returns the text of a cell, from the whole row.
        right: Whether cells are flush right, as numbers are.
        folds: Whether a long text continues in the next line on a narrow terminal.
        shrinks: Whether a long text is cut there instead. Other columns keep their width.
    """

    title: str
    show: Callable[[PrintedRow], str]
    right: bool = False
    folds: bool = False
    shrinks: bool = False


def column(
    name: str,
    show: CellText = figures.cell,
    *,
    title: str = "",
    right: bool = False,
    folds: bool = False,
) -> Column:
    """Returns a column of one member of the row."""
    return Column(title or name.upper(), lambda row: show(row.get(name)), right, folds)


def numbers(name: str, show: CellText = figures.count, *, title: str = "") -> Column:
    """Returns a column of a number."""
    return column(name, show, title=title, right=True)


@dataclass(slots=True)
class Sheet:
    """Rows under columns, which one command prints.

    Attributes:
        columns: ``None`` means a column for each member of the first row.
        types: Returns the types of the members of a row, in their order. Parquet needs the types,
            and so does the head of CSV without rows.
        answer: The rows as an Arrow table, if the command has one.
        title: Printed above a table only.
        heading: Whether columns have headings.
        notes: Printed below a table only.
    """

    rows: Iterable[PrintedRow]
    columns: Sequence[Column] | None = None
    types: Callable[[], Types] = dict
    answer: pa.Table | None = None
    title: str = ""
    heading: bool = True
    notes: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser, *, files: bool = False) -> None:
    """Adds the arguments of the output.

    Args:
        files: Whether the command prints rows of state, which may also go into a file.
    """
    group = parser.add_argument_group("output")
    formats = (TABLE, JSON, CSV, PARQUET) if files else (TABLE, JSON)
    group.add_argument(
        "--format",
        choices=formats,
        help="default: a table on a terminal, otherwise JSON, one object a line",
    )
    group.add_argument(
        "--json", dest="format", action="store_const", const=JSON, help="the same as --format json"
    )
    if files:
        group.add_argument(
            "--output", metavar="FILE", help="write into a file instead of standard output"
        )


def format_of(arguments: argparse.Namespace) -> str:
    """Returns the form in which a command prints; later calls return the same.

    Raises:
        ConfigError: A table cannot go into a file.
    """
    to_file = getattr(arguments, "output", None) is not None
    if arguments.format is None:
        arguments.format = TABLE if sys.stdout.isatty() and not to_file else JSON
        if arguments.format == TABLE and not _has_rich():
            print(f"Tables need the package rich. {_INSTALL}; or give --json.", file=sys.stderr)
            arguments.format = JSON
    elif arguments.format == TABLE and to_file:
        raise ConfigError(
            "printing a table",
            found="--output names a file",
            advice="Give --format json, csv or parquet.",
        )
    chosen: str = arguments.format
    return chosen


def emit(arguments: argparse.Namespace, *sheets: Sheet) -> None:
    """Prints sheets in the form that the arguments name.

    Raises:
        ConfigError: A package is missing, or the form does not fit.
    """
    form = format_of(arguments)
    if form == TABLE:
        console = console_of()
        for number, sheet in enumerate(sheets):
            if number:
                console.print()
            show(console, sheet)
        return
    rows = itertools.chain.from_iterable(sheet.rows for sheet in sheets)
    types, answer = (sheets[0].types, sheets[0].answer) if len(sheets) == 1 else (dict, None)
    path: str | None = getattr(arguments, "output", None)
    if form == PARQUET and path is None:
        raise ConfigError(
            "writing Parquet",
            found="a Parquet file is binary, so it needs a path",
            advice="Give --output FILE.",
        )
    if path is None:
        _WRITERS[form](rows, types, sys.stdout)
        return
    with _whole_file(Path(path)) as part:
        if form == PARQUET:
            _write_parquet(rows, types, answer, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                _WRITERS[form](rows, types, file)


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to, whose file appears under `path` once it is complete.

    A path that is not a regular file, such as a pipe, is written directly.

    Raises:
        ConfigError: The path cannot be written.
    """
    whole = path.is_file() or not path.exists()
    part = path.with_name(f"{path.name}.{os.getpid()}.part") if whole else path
    try:
        yield part
        if whole:
            part.replace(path)
    except OSError as error:
        raise ConfigError(
            f"writing {path}", found=str(error.strerror or error), advice="Name another --output."
        ) from error
    finally:
        if whole:
            with suppress(OSError):  # It may lie below a file.
                part.unlink()


def console_of() -> Console:
    """Returns the console for tables, which never interprets text as markup.

    Raises:
        ConfigError: The package is missing.
    """
    if not _has_rich():
        raise ConfigError(
            "printing a table",
            found="the package rich is missing",
            advice=f"{_INSTALL}, or give --json.",
        )
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Ends the program like one that prints JSON; rich would end it with status 1."""
            raise  # called where it was caught

    return Piped(markup=False, highlight=False, emoji=False)


def show(console: Console, sheet: Sheet) -> None:
    """Prints one table."""
    if sheet.title:
        console.print(sheet.title, style="bold", soft_wrap=True)
    rows = list(itertools.islice(sheet.rows, _TABLE_ROWS_MAX + 1))
    if len(rows) > _TABLE_ROWS_MAX:
        rows.pop()
        sheet.notes.append(f"Only the first {_TABLE_ROWS_MAX:,} rows are shown; --json has all.")
    if rows:
        _show_rows(console, sheet.columns or columns_of(rows), rows, heading=sheet.heading)
    for note in sheet.notes:
        console.print(figures.plain(note), soft_wrap=not console.is_terminal)


def _show_rows(
    console: Console, columns: Sequence[Column], rows: Sequence[PrintedRow], *, heading: bool
) -> None:
    lines = None
    if not any(one.folds for one in columns):
        plain = [
            PlainColumn(
                [*([one.title] if heading else []), *map(one.show, rows)], one.right, one.shrinks
            )
            for one in columns
        ]
        lines = lines_of(plain, width=console.width, least=_SHRUNK)
    if lines is None:
        console.print(table_of(columns, rows, heading=heading))
        return
    if heading:
        console.print(lines.pop(0), style="bold", soft_wrap=True)
    console.out("\n".join(lines), highlight=False)


def table_of(
    columns: Sequence[Column], rows: Iterable[PrintedRow], *, heading: bool = True
) -> Table:
    """Returns the table that `rich` prints."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, show_edge=False, show_header=heading, header_style="bold"
    )
    for one in columns:
        table.add_column(
            Text(one.title),
            justify="right" if one.right else "left",
            no_wrap=not (one.folds or one.shrinks),
            overflow="fold" if one.folds else "ellipsis",
            min_width=_SHRUNK if one.shrinks else None,
        )
    for row in rows:
        table.add_row(*(Text(one.show(row), no_wrap=not one.folds) for one in columns))
    return table


def columns_of(rows: Sequence[PrintedRow]) -> list[Column]:
    """Returns a column for each member of the first row; numbers are flush right."""
    return [
        column(name, title=figures.plain(name), right=_is_number(value), folds=True)
        for name, value in rows[0].items()
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def json_line(value: Any) -> str:
    """Returns a value as a line of JSON."""
    return json.dumps(to_json(value), ensure_ascii=not _speaks_utf8())


def _speaks_utf8() -> bool:
    """Returns whether standard output can print all letters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _write_json(rows: Iterable[PrintedRow], _types: Callable[[], Types], file: TextIO) -> None:
    for row in rows:
        print(json_line(row), file=file)


def _write_csv(rows: Iterable[PrintedRow], types: Callable[[], Types], file: TextIO) -> None:
    """Writes CSV of RFC 4180; null is an empty cell, and an empty text is a pair of quotes."""
    rest = iter(rows)
    first = next(rest, None)
    names = types() if first is None else first
    if not names:
        return
    rows = () if first is None else itertools.chain([first], rest)
    for cells in itertools.chain([names], (row.values() for row in rows)):
        # Readers skip an empty line, so a single null needs quotes.
        print(",".join(map(_csv_cell, cells)) or '""', file=file)


def _csv_cell(value: Any) -> str:
    shown = to_json(value)
    if shown is None:
        return ""
    text = json.dumps(shown, ensure_ascii=False) if isinstance(shown, (dict, list)) else str(shown)
    return text if _PLAIN_CELL.fullmatch(text) else '"' + text.replace('"', '""') + '"'


_WRITERS: Mapping[str, Callable[[Iterable[PrintedRow], Callable[[], Types], TextIO], None]] = {
    JSON: _write_json,
    CSV: _write_csv,
}


def _write_parquet(
    rows: Iterable[PrintedRow], types: Callable[[], Types], answer: pa.Table | None, path: Path
) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ConfigError(
            "writing Parquet", found="the package pyarrow is missing", advice=f"{_INSTALL}."
        ) from error
    try:
        pq.write_table(_arrow_table(rows, types()) if answer is None else answer, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            "writing Parquet",
            found="a column has values of several types, or of one that Parquet does not have",
            advice="Use --format json.",
        ) from error


def _arrow_table(rows: Iterable[PrintedRow], types: Types) -> pa.Table:
    import pyarrow as pa

    all_rows = list(rows)
    names = dict.fromkeys([*types, *itertools.chain.from_iterable(all_rows)])
    return pa.table(
        {name: _array(types.get(name), [row.get(name) for row in all_rows]) for name in names}
    )


def _array(type_: Type | None, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    if type_ is not None:
        with suppress(_OtherColumnsError):
            return arrow_array(type_, [_in_order(type_, value) for value in values])
    return pa.array([_plain(value) for value in values])


class _OtherColumnsError(Exception):
    """A value has other columns than the newest version."""


def _in_order(type_: Type, value: Any) -> Any:
    """Returns the columns of a value as a tuple, from which Arrow arrays are built."""
    if isinstance(type_, Array) and isinstance(value, list):
        return [_in_order(type_.element, one) for one in value]
    if not isinstance(type_, Struct) or not isinstance(value, dict):
        return value
    if list(value) != list(type_.names):
        raise _OtherColumnsError
    return tuple(value.values())


def _plain(value: Any) -> Any:
    as_dict = getattr(value, "as_dict", None)
    if as_dict is not None:
        return {name: _plain(part) for name, part in as_dict().items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401  # whether it is there
    except ModuleNotFoundError:
        return False
    return True
