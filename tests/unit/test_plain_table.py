"""Lines of plain tables are those that rich draws, or are left to rich."""

from __future__ import annotations

import io
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from redis_state.cli.output.plain_table import PlainColumn, lines_of
from redis_state.cli.output.printing import Column, PrintedRow, table_of

_TEXTS = st.text(st.sampled_from("ab 1-,…é漢字😀"), max_size=30).map(str.strip)
_TABLES = st.integers(1, 4).flatmap(
    lambda cells: st.lists(st.tuples(*[_TEXTS] * cells), min_size=1, max_size=5)
)
_LEAST = 10


def _drawn(columns: list[Column], rows: list[tuple[str, ...]], width: int) -> list[str]:
    drawn = io.StringIO()
    console = Console(file=drawn, width=width, markup=False, highlight=False, emoji=False)
    named = [{str(number): text for number, text in enumerate(row)} for row in rows]
    console.print(table_of(columns, named))
    return drawn.getvalue().splitlines()


def _cell(name: str, row: PrintedRow) -> str:
    return str(row[name])


def _columns(count: int, shrinking: int, rights: int) -> list[Column]:
    return [
        Column(
            f"T{number}",
            partial(_cell, str(number)),
            right=bool(rights >> number & 1),
            shrinks=number == shrinking,
        )
        for number in range(count)
    ]


@given(_TABLES, st.integers(-1, 3), st.integers(0, 15), st.integers(8, 120))
def test_lines_are_those_of_rich(
    rows: list[tuple[str, ...]], shrinking: int, rights: int, width: int
) -> None:
    columns = _columns(len(rows[0]), shrinking, rights)
    plain = [
        PlainColumn([one.title, *(row[at] for row in rows)], one.right, one.shrinks)
        for at, one in enumerate(columns)
    ]
    lines = lines_of(plain, width=width, least=_LEAST)
    assert lines is None or lines == _drawn(columns, rows, width)


def test_long_texts_are_cut_where_the_column_shrinks() -> None:
    plain = [PlainColumn(["x" * 40, "y"], False, True), PlainColumn(["1", "22"], True, False)]
    assert lines_of(plain, width=20, least=_LEAST) == ["x" * 15 + "…   1", "y" + " " * 17 + "22"]


def test_control_characters_are_left_to_rich() -> None:
    plain = [PlainColumn(["a\nb"], False, False)]
    assert lines_of(plain, width=20, least=_LEAST) is None


def test_table_without_a_column_to_cut_is_left_to_rich() -> None:
    plain = [PlainColumn(["x" * 30], False, False)]
    assert lines_of(plain, width=20, least=_LEAST) is None
