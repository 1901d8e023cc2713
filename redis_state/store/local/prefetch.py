"""Rows of a version that are read into memory before they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redis_state.errors import RedisStateError
from redis_state.protocol import SegmentGoneError
from redis_state.store.local.version import LocalVersion

log = logging.getLogger(__name__)


def is_here(local: LocalVersion) -> bool:
    """Returns whether all rows of a version are in memory."""
    base = local.parts[1]
    return base is None or base.whole


def prefetch(local: LocalVersion, keys: Sequence[bytes]) -> int:
    """Reads the rows of stored keys together, as far as there is room for them.

    An error is left to the next reader of the rows, which reads them again.

    Returns:
        Number of keys, from the first one on, whose rows are in memory; 0 after an error.
    """
    layers, base = local.parts
    if base is None or base.whole:
        return len(keys)
    rest = [at for at, key in enumerate(keys) if not any(key in layer.rows for layer in layers)]
    try:
        done = base.prefetch([keys[at] for at in rest])
    except (RedisStateError, SegmentGoneError) as error:
        log.debug("a prefetch failed; the next reader of the rows repeats it: %s", error)
        return 0
    return rest[done] if done < len(rest) else len(keys)
