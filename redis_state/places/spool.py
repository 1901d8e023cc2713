"""Keeps blocks on the local disk until they are written into files in another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile

from redis_state.errors import UnavailableError
from redis_state.format.header import FIELD as HEADER
from redis_state.format.region import sort_key

_BYTES_AT_ONCE = 1 << 20


class Spool:
    """A temporary file for the blocks of any number of segments, used by one thread.

    Where the system allows it, the file has no name, so it disappears with its process.

    Args:
        what: The work, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        with self._answered():
            self._file = TemporaryFile(prefix="redis-state-blocks-")  # noqa: SIM115  # see close

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        # A full disk fails here again, for bytes that are not needed any more.
        with suppress(OSError):
            self._file.close()

    def segment(self) -> SpooledBlocks:
        """Begins the blocks of a segment."""
        return SpooledBlocks(self)

    def clear(self) -> None:
        """Removes all blocks."""
        with self._answered():
            self._file.seek(0)
            self._file.truncate()

    def append(self, raw: bytes) -> int:
        """Appends bytes, and returns their offset."""
        with self._answered():
            at = self._file.seek(0, 2)
            self._file.write(raw)
        return at

    def read(self, offset: int, length: int) -> bytes:
        """Reads bytes."""
        with self._answered():
            self._file.seek(offset)
            raw = self._file.read(length)
            if len(raw) != length:
                raise OSError("the file was cut")
        return raw

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                self._what,
                found=f"its blocks could not pass the local disk: {error.strerror or error}",
                advice="No state that Redis served was changed; files that were written so far "
                "stay until the work is repeated or purged. See that the folder for temporary "
                "files (TMPDIR) has room for the compressed state, then try again.",
            ) from error


class SpooledBlocks:
    """The blocks of one segment, written in any order, and read in the order of a region."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._at: dict[str, tuple[int, int]] = {}

    def add(self, fields: Mapping[str, bytes]) -> None:
        """Writes blocks."""
        if fields:
            at = self._spool.append(b"".join(fields.values()))
            for name, raw in fields.items():
                self._at[name] = at, len(raw)
                at += len(raw)

    def blocks(self) -> Iterator[dict[str, bytes]]:
        """Yields the blocks in the order of a region, about a MiB at a time; the header is last.

        Raises:
            FormatError: A field has an unknown name.
        """
        fields: dict[str, bytes] = {}
        size = 0
        last = [HEADER] if HEADER in self._at else []
        for name in [*sorted(self._at.keys() - {HEADER}, key=sort_key), *last]:
            offset, length = self._at[name]
            if fields and size + length > _BYTES_AT_ONCE:
                yield fields
                fields, size = {}, 0
            fields[name] = self._spool.read(offset, length)
            size += length
        if fields:
            yield fields
