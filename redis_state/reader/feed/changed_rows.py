"""What deltas changed in one family: each key once, with as few reads as that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from redis_state.format.changes import Changes
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, stored_key
from redis_state.format.segment import SegmentContent
from redis_state.reader.lookup.points import KEYS_AT_ONCE, Points, is_covered


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A key that deltas touched.

    Attributes:
        family: That of the stored key.
        before: As the family was before the deltas has it; ``None`` if the key was absent, or
            nobody asked.
        after: As the family is after the deltas has it; ``None`` if the key is absent.
    """

    family: Family
    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Folded:
    """What some deltas, one after the other, say together of the family of a name.

    Attributes:
        before: The family in the version below; ``None`` if it had none of this name.
        after: The same for the version that the deltas made; it may be another family.
        rows: The last word on each key that they wrote, of `after`.
        gone: Of the rows of `before` these were removed, wherever `rows` does not say otherwise.
    """

    before: Family | None
    after: Family | None
    rows: dict[bytes, Value]
    gone: tuple[Tombstone, ...]


def fold(
    name: str,
    table: Sequence[Family],
    deltas: Iterable[tuple[Segment, SegmentContent]],
) -> tuple[Folded, Sequence[Family]]:
    """Put deltas together, the oldest first.

    Memory holds what they say of this family.

    Args:
        table: The families of the version below.

    Returns:
        What they say, and the families of the version that they made.
    """
    before = now = named(table, name)
    changes = Changes()
    replaced = False
    for segment, content in deltas:
        if segment.entry.complete:
            # It has every row of its version, and nothing older applies.
            changes, replaced = Changes(), True
        if content.families is not None:
            table = content.families
            now = named(table, name)
        ids = {family.id for family in (before, now) if family is not None}
        rows = {key: word for key, word in content.rows.items() if family_of(key) in ids}
        gone = tuple(one for one in content.tombstones if one.family in ids)
        changes.add(SegmentContent(rows, tombstones=gone))
    if before is None:
        ranges: tuple[Tombstone, ...] = ()
    elif replaced or now is None or now.id != before.id:
        ranges = (Tombstone(before.id),)
    else:
        ranges = tuple(one for one in changes.tombstones if one.family == before.id)
    left = {
        key: word
        for key, word in changes.rows.items()
        if now is not None and family_of(key) == now.id
    }
    return Folded(before, now, left, ranges), table


def named(table: Sequence[Family], name: str) -> Family | None:
    """The family of a name."""
    return next((family for family in table if family.name == name), None)


def changed_rows(
    folded: Folded, below: Callable[[], Points], *, with_before: bool
) -> Iterator[ChangedRow]:
    """The keys that deltas touched, each once.

    The version below is read where only it knows: for rows in a range that was removed, for lists
    that were appended to, and, if asked for, for all values before.

    Args:
        below: The version below; called once if it is needed.
        with_before: Read the value before of each key, and leave out those that did not change.

    Raises:
        RedisStateError: As `Points.values` and `Points.rows_in`.
    """
    before, after, rows = folded.before, folded.after, folded.rows
    points = None
    if before is not None and folded.gone:
        points = below()
        # A family that was dropped and made again under its name has another id.
        heir = after if after is not None and _one_layout(before, after) else None
        for key, value in points.rows_in(folded.gone, before):
            left = None
            if heir is not None:
                left = _alone(rows.pop(stored_key(heir.id, key[FAMILY_BYTES:]), None))
            if left != value or heir is None or _reads_otherwise(before, heir):
                yield ChangedRow(before, key, value, left)
    if after is None:
        return
    asks = before is not None and before.id == after.id
    keys = iter(rows)
    while chunk := list(islice(keys, KEYS_AT_ONCE)):
        wanted = [
            key
            for key in chunk
            if asks
            and (with_before or isinstance(rows[key], Appended))
            and not is_covered(folded.gone, key)
        ]
        found: dict[bytes, bytes] = {}
        if wanted:
            points = points or below()
            found = points.values(wanted, after)
        for key in chunk:
            old, word = found.get(key), rows[key]
            new = (old or b"") + word.data if isinstance(word, Appended) else word
            if not with_before or old != new:
                yield ChangedRow(after, key, old, new)


def _one_layout(one: Family, other: Family) -> bool:
    """Whether the same bytes are the same key in both."""
    return (one.kind, one.params, one.key_schema) == (other.kind, other.params, other.key_schema)


def _reads_otherwise(one: Family, other: Family) -> bool:
    """Whether the same bytes may be another value in the other family."""
    return one.id != other.id and one.value_schema != other.value_schema


def _alone(word: Value) -> bytes | None:
    """What a word makes of a key that was removed before."""
    return word.data if isinstance(word, Appended) else word
