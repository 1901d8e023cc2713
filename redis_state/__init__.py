"""State of PySpark streaming queries, kept in Redis."""

from redis_state.embedded import EmbeddedRedis
from redis_state.reader import connect
from redis_state.spark import configure

__version__ = "0.1.0"

__all__ = ["EmbeddedRedis", "__version__", "configure", "connect"]
