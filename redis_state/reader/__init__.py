"""Live reads: state that queries keep in Redis, as Python values."""

from redis_state.protocol.registry import OperatorInfo, QueryInfo
from redis_state.reader.changes import ChangeBatch
from redis_state.reader.diff import Change
from redis_state.reader.growth import Cause, CauseKind
from redis_state.reader.history import Revision
from redis_state.reader.hot import HotKey, HotKeys
from redis_state.reader.live_view import LiveView
from redis_state.reader.objects import StateObjects, state_objects
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.query import Query
from redis_state.reader.reader import Reader, connect
from redis_state.reader.status import Hold, PartitionStatus, QueryStatus, StoreStatus
from redis_state.reader.view import QueryView

__all__ = [
    "Cause",
    "CauseKind",
    "Change",
    "ChangeBatch",
    "Hold",
    "HotKey",
    "HotKeys",
    "LiveView",
    "OperatorInfo",
    "OperatorState",
    "PartitionStatus",
    "Query",
    "QueryInfo",
    "QueryStatus",
    "QueryView",
    "Reader",
    "Revision",
    "StateObjects",
    "StoreStatus",
    "connect",
    "state_objects",
]
