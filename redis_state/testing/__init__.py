"""Tests of stateful processors without Spark, and of queries by a batch of production.

`ProcessorTest` is in docs/stateful-python.md, `replay` in docs/replay.md.

For pytest there is a fixture, which a ``conftest.py`` imports by name::

    from redis_state.testing import redis_url
"""

from importlib.util import find_spec

from redis_state.replay.output import OutputDiff
from redis_state.replay.replay import Replay, Replayed, replay
from redis_state.replay.state import ReplayedKey, StateDiff, StoreChanges
from redis_state.testing.processor_test import ProcessorTest

if find_spec("pytest") is not None:
    from redis_state.testing.fixtures import redis_url as redis_url

__all__ = [
    "OutputDiff",
    "ProcessorTest",
    "Replay",
    "Replayed",
    "ReplayedKey",
    "StateDiff",
    "StoreChanges",
    "replay",
]
