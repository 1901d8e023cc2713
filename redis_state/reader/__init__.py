"""Live reads: state that queries keep in Redis, as Python values."""

from redis_state.protocol.registry import OperatorInfo, QueryInfo
from redis_state.reader.objects import StateObjects, state_objects
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.query import Query
from redis_state.reader.reader import Reader, connect
from redis_state.reader.view import QueryView

__all__ = [
    "OperatorInfo",
    "OperatorState",
    "Query",
    "QueryInfo",
    "QueryView",
    "Reader",
    "StateObjects",
    "connect",
    "state_objects",
]
