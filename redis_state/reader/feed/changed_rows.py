"""Changes of deltas in one family: each key once, with as few reads as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from redis_state.format.changes import Changes
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, stored_key
from redis_state.format.segment import SegmentContent
from redis_state.format.visible import visible, visible_values
from redis_state.reader.lookup.points import KEYS_AT_ONCE, Points, is_covered


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A key that deltas touched; values are without expiries (`format.visible`).

    Attributes:
        family: Family of the stored key.
        before: In the encoding of the family before the deltas; ``None`` if the key was absent, or
            its value was not requested.
        after: In the encoding of the family after the deltas; ``None`` if the key is absent.
    """

    family: Family
    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Folded:
    """Merged changes of consecutive deltas in the family of one name.

    Attributes:
        before: The family in the version below; ``None`` without a family of this name.
        after: The family in the last version; it may be another one.
        rows: The latest change of each key of `after`, as the last version shows it: without its
            expiry, and a removal if it is expired.
        gone: Removed ranges of `before`; `rows` overrides them.
        time_s: Time of the last version; see `format.visible.time_of`.
    """

    before: Family | None
    after: Family | None
    rows: dict[bytes, Value]
    gone: tuple[Tombstone, ...]
    time_s: int = 0


def fold(
    name: str,
    table: Sequence[Family],
    deltas: Iterable[tuple[Segment, SegmentContent]],
) -> tuple[Folded, Sequence[Family]]:
    """Merges deltas, the oldest first.

    Memory holds their changes in this family.

    Args:
        table: The families of the version below.

    Returns:
        The merged changes, and the families of the last version.
    """
    before = now = named(table, name)
    changes = Changes()
    replaced = False
    time_s = 0
    for segment, content in deltas:
        time_s = segment.entry.time
        if segment.entry.complete:
            # A complete delta has every row of its version, and nothing older applies.
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
    if now is not None and now.ttl:
        shown = {key: _shown(word, time_s) for key, word in left.items()}
        # Without rows below, a row that is expired is not even a removal.
        left = {key: word for key, word in shown.items() if word is not None or not replaced}
    return Folded(before, now, left, ranges, time_s), table


def named(table: Sequence[Family], name: str) -> Family | None:
    """Returns the family of a name."""
    return next((family for family in table if family.name == name), None)


def changed_rows(
    folded: Folded, below: Callable[[], Points], *, with_before: bool
) -> Iterator[ChangedRow]:
    """Yields the keys that deltas touched, each once.

    Reads the version below only where needed: for rows in a removed range, for lists with appended
    elements, and for all values before the change if they are requested. A row that merely expired
    counts as changed if values before are requested; then all rows below are read.

    Args:
        below: Opens the version below; called at most once, if needed.
        with_before: Read the value before of each key, and leave out unchanged keys.

    Raises:
        RedisStateError: See `Points.values` and `Points.rows_in`.
    """
    before, after, rows, gone = folded.before, folded.after, folded.rows, folded.gone
    points = None
    if before is not None and before.ttl and with_before:
        points = below()
        if points.time_s != folded.time_s and not _has_all(gone):
            yield from _of_all_rows(folded, before, points)
            gone = (Tombstone(before.id),)
    if before is not None and gone is folded.gone and gone:
        points = points or below()
        yield from _of_gone_rows(folded, before, points)
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
            and not is_covered(gone, key)
        ]
        found: dict[bytes, bytes] = {}
        if wanted:
            points = points or below()
            found = points.values(wanted, after)
            if after.ttl:
                found = visible_values(found, points.time_s)
        for key in chunk:
            old, word = found.get(key), rows[key]
            new = (old or b"") + word.data if isinstance(word, Appended) else word
            if not with_before or old != new:
                yield ChangedRow(after, key, old, new)


def _of_gone_rows(folded: Folded, before: Family, points: Points) -> Iterator[ChangedRow]:
    """Yields the changed rows of removed ranges; removes their changes."""
    after, rows = folded.after, folded.rows
    # A family that was dropped and created again under its name has another id.
    heir = after if after is not None and _one_layout(before, after) else None
    for key, stored in points.rows_in(folded.gone, before):
        value = visible(stored, points.time_s) if before.ttl else stored
        left = None
        if heir is not None:
            left = _alone(rows.pop(stored_key(heir.id, key[FAMILY_BYTES:]), None))
        if value is None and left is None:
            continue
        if left != value or heir is None or _reads_otherwise(before, heir):
            yield ChangedRow(before, key, value, left)


def _of_all_rows(folded: Folded, before: Family, points: Points) -> Iterator[ChangedRow]:
    """Yields the changed rows among all rows below, expired ones included; removes their changes.

    No delta replaced all rows, so the family is the same after them.
    """
    rows = folded.rows
    for key, stored in points.rows_in((Tombstone(before.id),), before):
        value = visible(stored, points.time_s)
        if key in rows:
            left = _alone(rows.pop(key))
        elif is_covered(folded.gone, key):
            left = None
        else:
            left = visible(stored, folded.time_s)
        if left != value:
            yield ChangedRow(before, key, value, left)


def _has_all(ranges: Sequence[Tombstone]) -> bool:
    """Returns whether ranges of one family have all of its keys."""
    return any(one.start is None and one.end is None for one in ranges)


def _shown(word: Value, time_s: int) -> Value:
    return visible(word, time_s) if isinstance(word, bytes) else word


def _one_layout(one: Family, other: Family) -> bool:
    """Returns whether the same bytes are the same key in both families."""
    return (one.kind, one.params, one.key_schema) == (other.kind, other.params, other.key_schema)


def _reads_otherwise(one: Family, other: Family) -> bool:
    """Returns whether the same bytes may be another value in the other family."""
    return one.id != other.id and one.value_schema != other.value_schema


def _alone(word: Value) -> bytes | None:
    """Returns the value that a change gives a key which was removed before."""
    return word.data if isinstance(word, Appended) else word
