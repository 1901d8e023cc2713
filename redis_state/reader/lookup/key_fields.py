"""Fields of segments that can hold keys (docs/format.md, sections 4.3 and 4.4)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from redis_state.errors import FormatError
from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.header import ORDERED_KINDS, Header
from redis_state.format.rows import family_of
from redis_state.format.segment import part_fields

Field = int | str
"""A bucket by its number; any other field by its name."""

FieldsOfKeys = tuple[Sequence[Field | None], Mapping[Field, Sequence[bytes]]]
"""For each key the field that can hold it, ``None`` if no field can; by field its keys."""

_NO_FIELDS: FieldsOfKeys = ((), {})


class KeyFields:
    """Stored keys of one family, and the fields that can hold them, in any segment.

    Attributes:
        ordered: Whether only the header of a segment names the fields.
    """

    def __init__(self, keys: Sequence[bytes], kind: str) -> None:
        self.ordered = kind in ORDERED_KINDS
        self._keys = keys
        self._hashes = [] if self.ordered else bucketing_hashes(keys, kind=kind)
        # Many segments have the same number of buckets.
        self._by_last: dict[int, FieldsOfKeys] = {}

    def of(self, segment: Segment, head: Header | None) -> FieldsOfKeys:
        """Returns the first field of each key; see `parts_of` for the further ones.

        Args:
            head: ``None`` until it is read; then keys of an ordered family have no field.
        """
        if not segment.entry.blocks or (self.ordered and head is None):
            return _NO_FIELDS
        if head is not None and self.ordered:
            return self._grouped([block_with(head, key) for key in self._keys])
        last = segment.entry.buckets - 1
        if last not in self._by_last:
            self._by_last[last] = self._grouped([hash_ & last for hash_ in self._hashes])
        return self._by_last[last]

    def _grouped(self, fields: Sequence[Field | None]) -> FieldsOfKeys:
        keys: dict[Field, list[bytes]] = {}
        for field, key in zip(fields, self._keys, strict=True):
            if field is not None:
                keys.setdefault(field, []).append(key)
        return fields, keys


def block_with(head: Header, key: bytes) -> str | None:
    """Returns the ordered block that can hold a key; ``None`` if no block can."""
    number = block_number(head, key)
    return None if number < 0 else f"{family_of(key)}/{number}"


def block_number(head: Header, key: bytes) -> int:
    """Returns the number of the ordered block that can hold a key; -1 if no block can."""
    return bisect_right(head.ordered.get(family_of(key), ()), key) - 1


def parts_of(head: Header, bucket: int) -> list[Field]:
    """Returns the fields of a bucket, in the order in which they apply."""
    return [bucket, *part_fields(bucket, head.parts.get(bucket, 1))[1:]]


def first_of(field: Field) -> Field:
    """Returns the first field of a bucket for a further part; any other field unchanged."""
    if isinstance(field, str) and "." in field:
        return int(field.partition(".")[0])
    return field


def check_absent(segment: Segment, head: Header, field: Field) -> None:
    """Checks that a field may be absent: a bucket without rows has no field.

    Raises:
        FormatError: The field is an ordered block, or a part of a bucket.
    """
    if isinstance(field, str) or field in head.parts:
        raise FormatError(
            f"reading {segment.ident}", found="a part of a bucket, or a block, is missing"
        )
