"""Tests of stateful processors, without Spark (docs/stateful-python.md).

For pytest there is a fixture, which a ``conftest.py`` imports by name::

    from redis_state.testing import redis_url
"""

from importlib.util import find_spec

from redis_state.testing.processor_test import ProcessorTest

if find_spec("pytest") is not None:
    from redis_state.testing.fixtures import redis_url as redis_url

__all__ = ["ProcessorTest"]
