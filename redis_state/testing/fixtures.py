"""Fixtures of pytest, to be imported by name: a plugin would be loaded by every run of pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_state.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a private server, which all tests of a run share, and which stops after the run."""
    with EmbeddedRedis() as server:
        yield server.url
