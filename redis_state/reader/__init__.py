"""Live reads: the state of running queries as Python values.

`lookup` finds keys, `feed` finds changes, `tables` makes Arrow tables. Imports `status`, `rows`,
`protocol` and the layers below them. Begin with `query.py` and `operator_state.py`.
"""

from redis_state.protocol.registry import OperatorInfo, QueryInfo
from redis_state.reader.feed.changes import ChangeBatch
from redis_state.reader.feed.diff import Change
from redis_state.reader.feed.history import Revision
from redis_state.reader.feed.hot import HotKey, HotKeys
from redis_state.reader.live_view import LiveView
from redis_state.reader.objects import StateObjects, state_objects
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.query import Query
from redis_state.reader.view import QueryView
from redis_state.status.growth import Cause, CauseKind
from redis_state.status.query_status import Hold, PartitionStatus, QueryStatus, StoreStatus
from redis_state.status.slowness import SlowCause, SlowCauseKind, Slowness, TimeSpent

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
    "Revision",
    "SlowCause",
    "SlowCauseKind",
    "Slowness",
    "StateObjects",
    "StoreStatus",
    "TimeSpent",
    "state_objects",
]
