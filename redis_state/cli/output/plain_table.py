"""Lines of a table whose cells have one line each, as `rich` would draw them.

`rich` measures and renders each cell as a document, which takes half a second for a thousand
queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

_GAP = "  "
_CUT = "…"


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """Cells of a column, its heading first if the table has headings.

    Attributes:
        shrinks: Cells may be cut, if the table is wider than the console.
    """

    cells: list[str]
    right: bool
    shrinks: bool


def lines_of(columns: Sequence[PlainColumn], *, width: int, least: int) -> list[str] | None:
    """Returns the lines of a table; ``None`` if `rich` has to lay it out.

    Args:
        width: Width of the console.
        least: Least width of a column whose cells may be cut.
    """
    from rich.cells import cell_len

    widths = []
    for column in columns:
        # What cannot be printed, and what ends a line, is left to rich.
        if not all(map(str.isprintable, column.cells)):
            return None
        measure = len if all(map(str.isascii, column.cells)) else cell_len
        widths.append(max([least if column.shrinks else 0, *map(measure, column.cells)]))
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    if excess > 0:
        cut = [number for number, column in enumerate(columns) if column.shrinks]
        if len(cut) != 1 or widths[cut[0]] - excess < least:
            return None
        widths[cut[0]] -= excess
    padded = [
        list(map(_right if column.right else _left, column.cells, repeat(cells)))
        for column, cells in zip(columns, widths, strict=True)
    ]
    return [_GAP.join(line) for line in zip(*padded, strict=True)]


def _left(text: str, cells: int) -> str:
    text, missing = _fitted(text, cells)
    return text + missing


def _right(text: str, cells: int) -> str:
    text, missing = _fitted(text, cells)
    return missing + text


def _fitted(text: str, cells: int) -> tuple[str, str]:
    """Returns a text of at most so many cells, and the spaces that it lacks."""
    if text.isascii():
        missing = cells - len(text)
        return (text, " " * missing) if missing >= 0 else (text[: cells - 1] + _CUT, "")
    from rich.cells import cell_len, set_cell_size

    missing = cells - cell_len(text)
    if missing >= 0:
        return text, " " * missing
    return set_cell_size(text, cells - 1) + _CUT, ""
