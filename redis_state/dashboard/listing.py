"""Order and selection of queries on the page of all queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from redis_state.dashboard.watch import Line

LINES_MAX = 1000
"""Most queries on one page; the search finds the others."""
SEARCH_MAX = 200

_ORDERS: Mapping[str, Callable[[Line], Any]] = {
    "query": lambda line: line.title.lower(),
    "state": lambda line: line.state,
    "batch": lambda line: line.progress,
    "rows": lambda line: line.rows,
    "bytes": lambda line: line.bytes,
    "partitions": lambda line: line.partitions,
    "lag": lambda line: line.lag,
    "written": lambda line: line.written_ms,
    "problems": lambda line: line.problems,
}
_HEADS = {
    "query": "Query",
    "state": "State",
    "batch": "Batch",
    "rows": "Rows",
    "bytes": "Size",
    "partitions": "Served",
    "lag": "Lag",
    "written": "Last written (UTC)",
    "problems": "Problems",
}
_FROM_SMALL = ("query", "state")


@dataclass(frozen=True, slots=True)
class ListingChoice:
    """Options in the query string of the page.

    Attributes:
        by: The column to order by; `falling` if the largest comes first.
        refresh_s: Seconds until the page reloads itself; 0 for never.
    """

    by: str = "query"
    falling: bool = False
    search: str = ""
    refresh_s: int = 0

    def link(self, **other: Any) -> str:
        """Returns the query string of this choice with some options replaced."""
        values = {"by": self.by, "falling": self.falling, "search": self.search}
        values |= {"refresh": self.refresh_s, **other}
        order = f"{'-' if values['falling'] else ''}{values['by']}"
        shown = {"sort": order, "search": values["search"], "refresh": values["refresh"]}
        default = {"sort": "query", "search": "", "refresh": 0}
        return "?" + urlencode(
            {name: text for name, text in shown.items() if text != default[name]}
        )


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """The head of a column: a link that orders by the column."""

    name: str
    text: str
    link: str
    sorted: str


def choice_of(parameters: Mapping[str, str], *, refresh_s: int) -> ListingChoice:
    """Parses the choice of a query string; ignores unknown values.

    Args:
        refresh_s: The only interval at which pages may refresh.
    """
    sort = parameters.get("sort", "query")
    by = sort.removeprefix("-")
    if by not in _ORDERS:
        sort = by = "query"
    return ListingChoice(
        by=by,
        falling=sort.startswith("-"),
        search=parameters.get("search", "").strip()[:SEARCH_MAX],
        refresh_s=refresh_s if parameters.get("refresh", "0") != "0" else 0,
    )


def chosen(lines: Iterable[Line], choice: ListingChoice) -> list[Line]:
    """Returns the lines that a search finds, in the requested order; equal ones by their title."""
    wanted = choice.search.lower()
    found = [line for line in lines if not wanted or wanted in _searched(line)]
    found.sort(key=_ORDERS["query"])
    found.sort(key=_ORDERS[choice.by], reverse=choice.falling)
    return found


def heads(choice: ListingChoice) -> list[ColumnHead]:
    """Returns the heads of all columns; a second click reverses the order."""
    result = []
    for name, text in _HEADS.items():
        mine = name == choice.by
        falling = not choice.falling if mine else name not in _FROM_SMALL
        order = ("descending" if choice.falling else "ascending") if mine else "none"
        result.append(ColumnHead(name, text, choice.link(by=name, falling=falling), order))
    return result


def _searched(line: Line) -> str:
    return f"{line.status.name}\n{line.status.id}\n{line.status.gen}".lower()
