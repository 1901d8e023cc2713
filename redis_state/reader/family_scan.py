"""The stored rows of one family, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from redis_state.backend.client import Client
from redis_state.format.header import Family
from redis_state.format.rows import stored_key
from redis_state.format.visible import time_of
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.family import FamilySource
from redis_state.reader.scan import ScanRows, arrays_of, families_of, pieces_of
from redis_state.reader.table_columns import RowCodec
from redis_state.reader.version_request import VersionRequest

if TYPE_CHECKING:
    from redis_state.rows.row_matrix import RowMatrix

RowPiece = tuple[RowCodec, ScanRows]
"""Rows of one partition, and their codec."""

ArrayPiece = tuple[RowCodec, "ScanRows | RowMatrix"]
"""Like `RowPiece`; rows of equal width as arrays."""

R = TypeVar("R", "ScanRows", "ScanRows | RowMatrix")


class StoredRows:
    """Reads all rows of a family; errors are those of `OperatorState.items`."""

    def __init__(self, of: FamilySource) -> None:
        self._of = of

    def open(self, wanted: VersionRequest) -> tuple[OperatorInfo, list[Opened]]:
        """Opens all partitions at one version."""
        return self._of.source.open_at(self._of.operator, self._of.store, wanted)

    def opened(self, wanted: VersionRequest) -> tuple[RowCodec, list[Opened]]:
        """Opens all partitions; returns them with the codec of the newest family table."""
        info, partitions = self.open(wanted)
        likely = self._of.choice.likely(info, partitions)
        return self._of.choice.codec(families_of(self._of.client, partitions)) or likely, partitions

    def pieces(self, wanted: VersionRequest, *, lists: bool | None = None) -> Iterator[RowPiece]:
        """Returns an iterator over the rows of all partitions.

        Args:
            lists: True requires a family of lists, False a family of single values; ``None``
                accepts both.
        """
        info, partitions = self.open(wanted)
        codec = self._of.choice.likely(info, partitions)
        if lists is not None:
            self._of.choice.be_list(codec, wanted=lists)
        return self.rows(partitions)

    def rows(self, partitions: Sequence[Opened]) -> Iterator[RowPiece]:
        """Yields the rows of these partitions."""
        return self._of_family(partitions, pieces_of)

    def arrays(self, partitions: Sequence[Opened]) -> Iterator[ArrayPiece]:
        """Yields the rows like `rows`, as arrays where their widths are equal."""
        return self._of_family(partitions, arrays_of)

    def _of_family(
        self,
        partitions: Sequence[Opened],
        read: Callable[[Client, Opened], Iterator[tuple[R, Sequence[Family]]]],
    ) -> Iterator[tuple[RowCodec, R]]:
        for opened in partitions:
            table: Sequence[Family] | None = None
            codec: RowCodec | None = None
            for rows, families in read(self._of.client, opened):
                if families is not table:
                    table, codec = families, self._of.choice.codec(families)
                if codec is None:
                    continue
                own = _own(rows, codec.family.id) if len(families) > 1 else rows
                if len(own):
                    yield codec, own

    def count(self, wanted: VersionRequest) -> int:
        """Returns the number of keys of the family."""
        info, partitions = self.open(wanted)
        likely = self._of.choice.likely(info, partitions)
        families = families_of(self._of.client, partitions)
        users = [family.name for family in families if not family.internal]
        # The counts of a manifest are of all families, so they serve a store with one. They include
        # expired rows.
        expires = any(family.ttl for family in families)
        expires |= any(time_of(opened.segments) for opened in partitions)
        # Those of a preview are of another moment than its rows.
        expires |= any(opened.below is not None for opened in partitions)
        if users == [likely.family.name] and not expires:
            heads = [opened.segments[0].entry for opened in partitions if opened.segments]
            return sum(head.live - head.internal for head in heads)
        return sum(len(rows) for _, rows in self.rows(partitions))


def _own(rows: R, family: int) -> R:
    """Returns the rows of a family."""
    if isinstance(rows, Sequence):
        own = stored_key(family, b"")
        return [row for row in rows if row[0].startswith(own)]
    return rows.of_family(family)
