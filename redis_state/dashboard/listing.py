"""The order and the choice of queries on the page of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from redis_state.dashboard.watch import Line

LINES_MAX = 1000
"""So many queries stand on one page; the search finds the others."""
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
    """What the query string of the page asks for.

    Attributes:
        by: The column to order by; `falling` if the largest comes first.
        refresh_s: After how long the page loads itself again; 0 for never.
    """

    by: str = "query"
    falling: bool = False
    search: str = ""
    refresh_s: int = 0

    def link(self, **other: Any) -> str:
        """The query string of the same choice, but for what is named."""
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
    """The head of a column: a link that orders by it."""

    name: str
    text: str
    link: str
    sorted: str


def choice_of(parameters: Mapping[str, str], *, refresh_s: int) -> ListingChoice:
    """The choice of a query string; what it does not know is left out.

    Args:
        refresh_s: The one interval at which pages may refresh.
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
    """The lines that a search finds, in the order asked for; equal ones by their title."""
    wanted = choice.search.lower()
    found = [line for line in lines if not wanted or wanted in _searched(line)]
    found.sort(key=_ORDERS["query"])
    found.sort(key=_ORDERS[choice.by], reverse=choice.falling)
    return found


def heads(choice: ListingChoice) -> list[ColumnHead]:
    """The heads of all columns. A second use turns the order round."""
    result = []
    for name, text in _HEADS.items():
        mine = name == choice.by
        falling = not choice.falling if mine else name not in _FROM_SMALL
        order = ("descending" if choice.falling else "ascending") if mine else "none"
        result.append(ColumnHead(name, text, choice.link(by=name, falling=falling), order))
    return result


def _searched(line: Line) -> str:
    return f"{line.status.name}\n{line.status.id}\n{line.status.gen}".lower()
