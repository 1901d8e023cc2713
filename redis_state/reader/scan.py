"""Reads all rows of a version; reopens the version if maintenance replaces a segment first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from redis_state.backend.client import Client
from redis_state.format.header import Family
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import fetch
from redis_state.protocol.version_rows import VersionRows, header_of
from redis_state.reader.reopening import Reopening

if TYPE_CHECKING:
    from redis_state.rows.row_matrix import RowMatrix

ScanRows = Sequence[tuple[bytes, bytes]]
"""Stored keys and their values."""

R = TypeVar("R", "ScanRows", "ScanRows | RowMatrix")

_ROWS_AT_ONCE = 1_000


def pieces_of(
    client: Client, opened: Opened, *, bare: bool = True
) -> Iterator[tuple[ScanRows, Sequence[Family]]]:
    """Yields the live rows of a version in pieces, each with the family table.

    Args:
        bare: See `VersionRows`.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
        UnavailableError: Maintenance dropped a segment after rows of it were returned.
    """
    return _pieces(client, opened, _lists, bare=bare)


def arrays_of(
    client: Client, opened: Opened
) -> Iterator[tuple[ScanRows | RowMatrix, Sequence[Family]]]:
    """Yields rows like `pieces_of`, as arrays where widths are equal; needs numpy and pyarrow.

    Raises:
        RedisStateError: See `pieces_of`.
    """
    return _pieces(client, opened, _arrays, bare=True)


def rows_of(client: Client, opened: Opened) -> Iterator[tuple[bytes, bytes, Sequence[Family]]]:
    """Yields stored key, value and family table of each live row of a version.

    Raises:
        RedisStateError: See `pieces_of`.
    """
    for rows, families in pieces_of(client, opened):
        for key, value in rows:
            yield key, value, families


def families_of(client: Client, partitions: Sequence[Opened]) -> tuple[Family, ...]:
    """Returns the family table of the first partition that has one; empty if none has.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: A header is damaged.
        UnavailableError: Maintenance replaces segments again and again.
    """
    for opened in partitions:
        version = Reopening(client, opened, attempted="reading a family table")
        found = version.read(partial(_family_table, client))
        if found is not None:
            return found
    return ()


def _family_table(client: Client, opened: Opened) -> tuple[Family, ...] | None:
    read = partial(fetch, client, opened.id)
    heads = (header_of(read, segment) for segment in opened.segments)
    return next((head.families for head in heads if head.families is not None), None)


def _pieces(
    client: Client, opened: Opened, hashed: Callable[[VersionRows], Iterator[R]], *, bare: bool
) -> Iterator[tuple[R | ScanRows, Sequence[Family]]]:
    version = Reopening(client, opened, attempted="reading all rows")
    return version.rows(partial(_read, client, hashed, bare))


def _read(
    client: Client, hashed: Callable[[VersionRows], Iterator[R]], bare: bool, opened: Opened
) -> Iterator[tuple[R | ScanRows, Sequence[Family]]]:
    if not opened.segments:
        return
    read = partial(fetch, client, opened.id)
    version = VersionRows(read, opened.segments, where=str(opened.id), bare=bare)
    live = 0
    for group in hashed(version):
        live += len(group)
        if len(group):
            yield group, version.families
    for family in version.ordered_families():
        rows = version.ordered(family)
        while piece := list(islice(rows, _ROWS_AT_ONCE)):
            live += len(piece)
            yield piece, version.families
    version.check(live)


def _lists(version: VersionRows) -> Iterator[ScanRows]:
    return (list(group.items()) for group in version.hashed())


def _arrays(version: VersionRows) -> Iterator[ScanRows | RowMatrix]:
    for group in version.matrices():
        yield list(group.items()) if isinstance(group, dict) else group
