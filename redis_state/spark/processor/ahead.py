"""Groups of a batch whose state is read together, before a processor asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from redis_state.spark.processor.groups import KeyedRows
from redis_state.spark.processor.handle import Handle

_GROUPS_MAX = 1024
"""Most groups whose state is read together."""


def read_ahead(handle: Handle, rows: Iterator[KeyedRows]) -> Iterator[KeyedRows]:
    """Yields groups in their order; the state of the next ones is read together.

    Of a map the first rows of each group are read. Groups pass through while all state is in
    memory.
    """
    prefixes = [one.prefix for one in handle.variables.values()]
    while prefixes and not handle.store.is_here and (window := list(islice(rows, _GROUPS_MAX))):
        encoded = [handle.keys.encode(found) for found, _ in window]
        begin = 0
        while begin < len(window):
            stored = [prefix + key for key in encoded[begin:] for prefix in prefixes]
            # Where nothing was read, for an error or for want of room, each group reads its own.
            read = handle.store.prefetch(stored) // len(prefixes)
            end = begin + read if read else len(window)
            yield from window[begin:end]
            begin = end
    yield from rows
