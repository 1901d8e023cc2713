"""Chunks of a segment's fields, which are sent one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Fields = Mapping[str, bytes]
"""Blocks by the names of their fields."""

CHUNK_BYTES_MAX = 1 << 20
CHUNK_FIELDS_MAX = 1024
STAGED_BYTES_MAX = 256 << 10
"""Bytes sent at once ahead of a commit or a snapshot."""

STAGED_BY_SCRIPT_MAX = 64 << 10
"""Bytes that one script stages. The server does nothing else meanwhile, but serves other clients
between the scripts of a pipeline."""


def chunks(fields: Fields, *, bytes_max: int = CHUNK_BYTES_MAX) -> Iterator[dict[str, bytes]]:
    """Splits fields into groups of bounded size; a larger block is a group of its own."""
    chunk: dict[str, bytes] = {}
    size = 0
    for name, block in fields.items():
        full = size + len(block) > bytes_max or len(chunk) >= CHUNK_FIELDS_MAX
        if chunk and full:
            yield chunk
            chunk, size = {}, 0
        chunk[name] = block
        size += len(block)
    if chunk:
        yield chunk


def split_last(fields: Fields, *, blocks: int) -> tuple[Fields, Fields]:
    """Splits blocks into those to stage ahead of a commit, and those of its transaction.

    All blocks of a small delta go along, without a script. Otherwise the last ones pass a script of
    the transaction, and have at most `STAGED_BY_SCRIPT_MAX` bytes.

    Args:
        blocks: Number of all blocks of the delta.
    """
    if len(fields) == blocks and len(list(chunks(fields))) <= 1:
        return {}, fields
    *early, last = list(chunks(fields, bytes_max=STAGED_BY_SCRIPT_MAX)) or [{}]
    return {name: block for chunk in early for name, block in chunk.items()}, last
