"""Live reads: state that queries keep in Redis, as Python values."""

from redis_state.reader.operator_state import OperatorState
from redis_state.reader.query import Query
from redis_state.reader.reader import Reader, connect
from redis_state.reader.registry import OperatorInfo, QueryInfo

__all__ = ["OperatorInfo", "OperatorState", "Query", "QueryInfo", "Reader", "connect"]
