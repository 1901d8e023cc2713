"""The column families of a version."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.format.header import Family, Header, highest_after
from redis_state.format.rows import stored_key


@dataclass(frozen=True, slots=True)
class Families:
    """The family table of a version.

    Attributes:
        table: Ids ascend. Empty in version 0, and where all families were dropped.
        highest_id: Of all families that the lineage ever had.
    """

    table: tuple[Family, ...] = ()
    highest_id: int = 0

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the families."""
        return frozenset(family.id for family in self.table)

    @property
    def lists(self) -> frozenset[int]:
        """Ids of the families whose values are lists."""
        return frozenset(family.id for family in self.table if family.multi_value)

    @property
    def internal(self) -> frozenset[bytes]:
        """What the stored keys of internal families begin with."""
        return frozenset(stored_key(family.id, b"") for family in self.table if family.internal)

    def after(self, head: Header) -> Families:
        """The table of the version that a segment with this header makes."""
        if head.families is None:
            return self
        highest = highest_after(self.highest_id, head.families, head.highest_id)
        return Families(head.families, highest)

    def dropped_over(self, below: Families) -> list[int]:
        """Ids of families that are gone: of the version below, or given since and dropped again."""
        if self == below:
            return []
        given = below.ids.union(range(below.highest_id + 1, self.highest_id + 1))
        return sorted(given - self.ids)


NO_FAMILIES = Families()
"""The table of version 0."""
