"""Rows of equal width as arrays of bytes, without a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redis_state.errors import FormatError
from redis_state.format.expiry import EXPIRY_BYTES
from redis_state.format.rows import FAMILY_BYTES, Heads, cut_alike
from redis_state.format.visible import check_known

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

Pieces: TypeAlias = "Sequence[bytes] | Bytes"
"""Keys or values: a list of any, or an array of those of one width, a line each."""


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """Stored rows of equal width.

    Attributes:
        keys: Stored keys, of shape (rows, bytes of a key).
        values: Values, of shape (rows, bytes of a value).
    """

    keys: Bytes
    values: Bytes

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> RowMatrix:
        return RowMatrix(self.keys[rows], self.values[rows])

    def prefixes(self) -> set[bytes]:
        """Returns the family ids at the start of the keys, as stored."""
        return {id_.to_bytes(FAMILY_BYTES, "big") for id_ in self.ids()}

    def ids(self) -> list[int]:
        """Returns the family ids of the keys, in ascending order."""
        return [int(id_) for id_ in np.unique(self._families())]

    def of_family(self, family: int) -> RowMatrix:
        """Returns the rows of a family."""
        return self._where(self._families() == family)

    def unexpired(self, time_s: int, *, bare: bool) -> RowMatrix:
        """Returns the rows that are not expired; see `format.visible.unexpired`.

        Raises:
            FormatError: A value has no expiry, or the version has no time.
        """
        check_known(time_s)
        width = self.values.shape[1] - EXPIRY_BYTES
        if width < 0:
            raise FormatError("reading the expiry of a row", found="a value has no expiry")
        expiries = np.ascontiguousarray(self.values[:, width:]).view(">u4")[:, 0]
        rows = RowMatrix(self.keys, self.values[:, :width]) if bare else self
        return rows._where(expiries > time_s)

    def without(self, keys: KeySet) -> RowMatrix:
        """Returns the rows with other keys."""
        alike = keys.of_width(self.keys.shape[1])
        if alike is None:
            return self
        own = [None, pa.py_buffer(_packed(self.keys))]
        gone = pc.is_in(pa.Array.from_buffers(alike.type, len(self), own), value_set=alike)
        return self._where(~gone.to_numpy(zero_copy_only=False))

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Returns each row as a stored key and its value."""
        return list(zip(split(self.keys), split(self.values), strict=True))

    def _families(self) -> npt.NDArray[np.uint16]:
        ids = np.ascontiguousarray(self.keys[:, :FAMILY_BYTES])
        return ids.view(">u2")[:, 0]

    def _where(self, kept: npt.NDArray[np.bool_]) -> RowMatrix:
        return self if kept.all() else RowMatrix(self.keys[kept], self.values[kept])


class KeySet:
    """Stored keys, to be found among the keys of arrays."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        by_width: dict[int, list[bytes]] = {}
        for key in keys:
            by_width.setdefault(len(key), []).append(key)
        self._by_width = {
            width: pa.array(alike, pa.binary(width)) for width, alike in by_width.items()
        }

    def of_width(self, width: int) -> pa.Array | None:
        """Returns the keys of so many bytes; ``None`` if there are none."""
        return self._by_width.get(width)


def matrices(
    blocks: Sequence[tuple[str, bytes]],
) -> Iterator[tuple[RowMatrix | None, list[tuple[str, bytes]]]]:
    """Groups blocks by the layout of their rows.

    Args:
        blocks: Names and payloads.

    Yields:
        The rows of some blocks, and these blocks. ``None`` in place of the rows if they have
        different widths or violate the format: `rows.columns` decodes them, or raises.
    """
    groups: dict[Heads | None, list[tuple[str, bytes]]] = {}
    bodies: dict[Heads | None, list[bytes]] = {}
    for block in blocks:
        heads, body = cut_alike(block[1]) or (None, b"")
        groups.setdefault(heads, []).append(block)
        bodies.setdefault(heads, []).append(body)
    for heads, group in groups.items():
        yield None if heads is None else _matrix(heads, bodies[heads]), group


def split(lines: Bytes) -> list[bytes]:
    """Returns each line as bytes."""
    width, data = lines.shape[1], _packed(lines).tobytes()
    return [data[at * width : (at + 1) * width] for at in range(len(lines))]


def _matrix(heads: Heads, bodies: Sequence[bytes]) -> RowMatrix | None:
    """Returns the rows; ``None`` if a row has other heads, or keys are not in ascending order."""
    key_at = len(heads.key)
    value_head_at = key_at + heads.key_bytes
    value_at = value_head_at + len(heads.value)
    row_bytes = value_at + heads.value_bytes
    lines = np.frombuffer(b"".join(bodies), np.uint8).reshape(-1, row_bytes)
    if not (
        _has(lines[:, :key_at], heads.key) and _has(lines[:, value_head_at:value_at], heads.value)
    ):
        return None
    keys = lines[:, key_at:value_head_at]
    # numpy compares such texts byte by byte, zeros at their ends included, since all are as long.
    texts = _packed(keys).view(f"S{heads.key_bytes}")
    ascends = texts[:-1] < texts[1:]
    ends = np.cumsum([len(body) // row_bytes for body in bodies])[:-1]
    ascends[ends - 1] = True
    return RowMatrix(keys, lines[:, value_at:]) if ascends.all() else None


def _has(columns: Bytes, head: bytes) -> bool:
    return bool((columns == np.frombuffer(head, np.uint8)).all())


def _packed(lines: Bytes) -> Bytes:
    return np.ascontiguousarray(lines).reshape(-1)
