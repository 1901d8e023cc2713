"""Helpers shared by the tests of the Python store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider

NewProvider = Callable[..., StateStoreProvider]


@contextmanager
def new_providers(url: str) -> Iterator[NewProvider]:
    """Makes providers of one fresh checkpoint, which are closed at the end."""
    checkpoint = f"test {uuid.uuid4().hex}"
    with ExitStack() as stack:

        def new(
            *, run: str = "run-1", name: str = checkpoint, partition: int = 0, **options: Any
        ) -> StateStoreProvider:
            run_of = options.pop("registered", None)
            id_ = StateStoreProviderId(StateStoreId(name, 0, partition), run)
            provider = StateStoreProvider(
                id_, config=options.pop("config", url), run=run_of, **options
            )
            stack.callback(provider.close)
            return provider

        yield new
