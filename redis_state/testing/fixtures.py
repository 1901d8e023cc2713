"""Fixtures of pytest, to be imported by name: no plugin that every run of pytest would load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_state.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a private server, which all tests of a run share and which goes with it."""
    with EmbeddedRedis() as server:
        yield server.url
