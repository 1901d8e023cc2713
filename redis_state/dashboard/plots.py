"""Lines over time and maps of partitions, as elements of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import pygal

from redis_state.reader import PartitionStatus

LEVELS = 8
MAP_COLUMNS = 16
CELLS_MAX = 4096
_WIDTH, _HEIGHT, _STROKE = 280, 64, 2
_SVG = "{http://www.w3.org/2000/svg}"

ElementTree.register_namespace("", _SVG[1:-1])


def line(points: Sequence[tuple[float, float | None]], *, label: str) -> str:
    """Returns an inline SVG of values over time, with breaks where a value is ``None``.

    Takes only the shapes of pygal's chart, without its styles, scripts and fonts. The pages' own
    style sheet colours them, and their content policy allows nothing else.
    """
    chart = pygal.XY(
        js=(),
        css=(),
        width=_WIDTH,
        height=_HEIGHT,
        margin=0,
        margin_top=_STROKE,
        spacing=0,
        show_dots=False,
        show_legend=False,
        show_x_labels=False,
        show_y_labels=False,
        allow_interruptions=True,
        no_data_text="",
        include_x_axis=True,
    )
    chart.add("", list(points))
    drawn = ElementTree.fromstring(chart.render())
    attributes = {"class": "line", "role": "img", "aria-label": label}
    attributes |= {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "preserveAspectRatio": "none"}
    svg = ElementTree.Element(f"{_SVG}svg", attributes)
    for path in drawn.iter(f"{_SVG}path"):
        shape = path.get("d", "")
        ElementTree.SubElement(svg, f"{_SVG}path", {"d": _area(shape), "class": "area"})
        ElementTree.SubElement(svg, f"{_SVG}path", {"d": shape})
    return ElementTree.tostring(svg, encoding="unicode")


def _area(shape: str) -> str:
    """Closes the line of a path along the bottom, which is zero."""
    first, *_, last, _ = shape.lstrip("M").replace("L", "").split()
    return f"{shape} L{last} {_HEIGHT} L{first} {_HEIGHT} Z"


@dataclass(frozen=True, slots=True)
class Cell:
    """A partition in a map; `level` is 0 for nothing, up to `LEVELS` for the most."""

    partition: int
    value: int
    level: int


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Partitions in rows of `MAP_COLUMNS`.

    Attributes:
        skew: Ratio of the largest value to the mean; ``None`` if all are empty.
        left_out: Number of partitions without a cell, since there are too many.
    """

    rows: tuple[tuple[Cell, ...], ...]
    largest: int
    skew: float | None
    left_out: int


def heat_map(partitions: Sequence[PartitionStatus], *, of: str) -> HeatMap:
    """Returns a map of one number of each partition.

    Args:
        of: ``rows`` or ``bytes``.
    """
    values = [(one.partition, int(getattr(one, of))) for one in partitions]
    largest = max((value for _, value in values), default=0)
    total = sum(value for _, value in values)
    cells = [
        Cell(partition, value, _level(value, largest)) for partition, value in values[:CELLS_MAX]
    ]
    return HeatMap(
        rows=tuple(
            tuple(cells[start : start + MAP_COLUMNS]) for start in range(0, len(cells), MAP_COLUMNS)
        ),
        largest=largest,
        skew=largest * len(values) / total if total else None,
        left_out=len(values) - len(cells),
    )


def _level(value: int, largest: int) -> int:
    return -(-value * LEVELS // largest) if largest else 0
