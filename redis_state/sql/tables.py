"""Maps SQL table names to state: names of queries, operators, stores and state variables.

A table has the name of its query, or its id. The number of the operator, the name of the store and
that of the state variable follow, each after an underscore. Defaults are left out: operator 0 and
`default`. So a name does not change when the query gets another operator.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state.errors import (
    FormatError,
    NotFoundError,
    RedisStateError,
    StateError,
    UsageError,
)
from redis_state.ids import DEFAULT_STORE
from redis_state.protocol.registry import QueryInfo
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.status.figures import some_of

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_ODD = re.compile(r"[^0-9A-Za-z_]+")


@dataclass(frozen=True, slots=True)
class TableSource:
    """The state behind a table.

    Attributes:
        gen: The checkpoint.
    """

    gen: str
    operator: int
    store: str
    family: str

    def suffix(self) -> str:
        """Returns the part of the table's name after the query's name."""
        parts = [
            str(self.operator) if self.operator else "",
            "" if self.store == DEFAULT_STORE else self.store,
            "" if self.family == DEFAULT_FAMILY else self.family,
        ]
        return "".join(f"_{_ODD.sub('_', part).strip('_')}" for part in parts if part)


PlacesOf = Callable[[QueryInfo], Iterable[TableSource]]
"""Returns the operators, stores and state variables of a query, by reading Redis."""


def folded(name: str) -> str:
    """Folds a name as DuckDB does, which ignores the case of the letters A to Z only."""
    return name.translate(_LOWER)


def newest(queries: Sequence[QueryInfo]) -> list[QueryInfo]:
    """Returns the queries without those whose name or id a newer checkpoint has."""
    by_name: dict[str, QueryInfo] = {}
    for info in sorted(queries, key=lambda one: (one.seen_ms, one.created_ms)):
        by_name[folded(_name(info))] = info
    return sorted(by_name.values(), key=_name)


def all_tables(queries: Sequence[QueryInfo], places_of: PlacesOf) -> dict[str, TableSource]:
    """Returns every table by its name."""
    return {
        _name(info) + place.suffix(): place for info in newest(queries) for place in places_of(info)
    }


def find_tables(
    names: Iterable[str],
    queries: Sequence[QueryInfo],
    places_of: PlacesOf,
    *,
    own: Container[str] = (),
) -> dict[str, TableSource]:
    """Returns the tables of lower-case names; reads only queries whose name fits.

    A table may also be named by the id of its query or checkpoint instead of the query's name.

    Args:
        own: Names that need not exist.

    Raises:
        NotFoundError: There is no such table.
        RedisStateError: The only query that may have the table cannot be read.
        UsageError: The name stands for two tables.
    """
    known: dict[str, list[TableSource]] = {}
    found: dict[str, TableSource] = {}
    for name in names:
        fitting: set[TableSource] = set()
        unread: RedisStateError | None = None
        for alias, info in _aliases(queries).items():
            if name != alias and not name.startswith(f"{alias}_"):
                continue
            if info.gen not in known:
                try:
                    known[info.gen] = list(places_of(info))
                except (NotFoundError, StateError, FormatError) as error:
                    if name == alias:
                        raise
                    # Another query may have this very name.
                    unread = error
                    continue
            fitting |= {one for one in known[info.gen] if alias + folded(one.suffix()) == name}
        if unread is not None and not fitting and name not in own:
            raise unread
        if len(fitting) > 1:
            raise UsageError(
                f"looking for table '{name}'",
                found="the state of two operators has this name",
                advice="Use the id of the query or of its checkpoint instead of its name.",
            )
        if not fitting and name in own:
            continue
        if not fitting:
            there = some_of([_name(info) for info in newest(queries)])
            raise NotFoundError(
                f"looking for table '{name}'",
                found="there is no such query, operator, store or state variable",
                advice=f"SHOW TABLES lists them. Queries: {there or 'none'}.",
            )
        (found[name],) = fitting
    return found


def _aliases(queries: Sequence[QueryInfo]) -> Mapping[str, QueryInfo]:
    """Returns queries by the lower-case prefixes of their tables; of two, the newer query."""
    found: dict[str, QueryInfo] = {}
    for info in sorted(queries, key=lambda one: (one.seen_ms, one.created_ms)):
        found |= {folded(one): info for one in (info.gen, info.id, info.name) if one}
    return found


def _name(info: QueryInfo) -> str:
    return info.title
