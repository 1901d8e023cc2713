"""The loaded providers of this process, after Spark's `StateStore` object, at their public path."""

from redis_state.store.loaded import (
    LOADED_MAX,
    LoadedStores,
    coordinator,
    get,
    get_read_only,
    is_loaded,
    loaded,
    maintain_every,
    stop,
    unload,
)

__all__ = [
    "LOADED_MAX",
    "LoadedStores",
    "coordinator",
    "get",
    "get_read_only",
    "is_loaded",
    "loaded",
    "maintain_every",
    "stop",
    "unload",
]
