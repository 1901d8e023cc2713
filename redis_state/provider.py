"""The provider of a partition's versions, at its public path."""

from redis_state.store.provider import VERSIONS_CACHED_MAX, StateStoreProvider

__all__ = ["VERSIONS_CACHED_MAX", "StateStoreProvider"]
