"""Column families of a version."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial

from redis_state.format import ordered
from redis_state.format.entry import Entry
from redis_state.format.header import Family, Header, highest_after
from redis_state.format.rows import stored_key


@dataclass(frozen=True, slots=True)
class Families:
    """Family table of a version.

    Attributes:
        table: Families in ascending order of id. Empty in version 0, and after all were dropped.
        highest_id: Highest id of all families that the lineage ever had.
        ids: Ids of the families.
        lists: Ids of the families whose values are lists.
        internal: Stored key prefixes of internal families.
        expire: True if a family has a time to live.
    """

    table: tuple[Family, ...] = ()
    highest_id: int = 0
    # Computed once: read with every version, and shared by many versions.
    ids: frozenset[int] = field(init=False, compare=False)
    lists: frozenset[int] = field(init=False, compare=False)
    internal: frozenset[bytes] = field(init=False, compare=False)
    expire: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        own, table = partial(object.__setattr__, self), self.table
        own("ids", frozenset(family.id for family in table))
        own("lists", frozenset(family.id for family in table if family.multi_value))
        internal = (family.id for family in table if family.internal)
        own("internal", frozenset(stored_key(id_, b"") for id_ in internal))
        own("expire", any(family.ttl for family in table))

    def after(self, head: Header) -> Families:
        """Returns the family table after a segment with this header."""
        if head.families is None:
            return self
        highest = highest_after(self.highest_id, head.families, head.highest_id)
        return Families(head.families, highest)

    def time_of(self, entry: Entry) -> int:
        """Returns the time of a version with this table if all of its rows expire, else 0."""
        return entry.time if all(family.ttl for family in self.table) else 0

    def without_ttl(self) -> Families:
        """Returns the table with families that have no time to live."""
        if not self.expire:
            return self
        return Families(tuple(replace(family, ttl=False) for family in self.table), self.highest_id)

    def dropped_over(self, below: Families) -> list[int]:
        """Returns the ids of dropped families.

        These are families of the version below, and families declared and dropped since then.
        """
        given = below.ids.union(range(below.highest_id + 1, self.highest_id + 1))
        return sorted(given - self.ids)


NO_FAMILIES = Families()
"""Family table of version 0."""


def family_of(codec_name: str, *, lists: bool = False, ttl: bool = False) -> Family:
    """Returns the only family of a store with this codec; its rows are ordered by key."""
    schema = json.dumps({"type": "redis-state.python", "codec": codec_name})
    return Family(0, "default", "range", (0,), schema, schema, multi_value=lists, ttl=ttl)


def described(families: Families) -> str:
    """Describes the rows of unexpected families for an error message."""
    if [family.id for family in families.table] != [ordered.FAMILY_ID]:
        ttl = " with a time to live, which no store of Python has" if families.expire else ""
        return f"it has column families{ttl or ', which FamilyStore writes'}"
    (family,) = families.table
    try:
        codec = json.loads(family.key_schema)["codec"]
    except (ValueError, KeyError, TypeError):
        codec = family.key_schema  # of a Spark query
    lists = " with lists" if family.multi_value else ""
    return f"its rows were written with another codec: {str(codec)[:200]}{lists}"
