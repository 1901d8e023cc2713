"""First times of the blocks of a family whose keys are ordered by time.

Headers have the first key of each block of an ordered family. So the oldest and newest keys of
timers and expiry indexes are known without reading a row.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from redis_state.codec.ordered_key import decode_first
from redis_state.codec.processor_families import EXPIRY_OF, TIMERS, TIMERS_BY_GROUP
from redis_state.errors import FormatError
from redis_state.format.header import Family, Header
from redis_state.format.rows import FAMILY_BYTES
from redis_state.rows.codec import FamilyCodec, codec_of
from redis_state.rows.python_codec import codec_name_of
from redis_state.types.values import Internal

_PROCESSORS = (TIMERS, EXPIRY_OF)
_EVENT_TIME = "__event_time"
_MS = "Ms"


def times_of_blocks(family: Family, header: Header) -> list[int]:
    """Returns the time of each block's first key, in ms since 1970; empty for other key orders.

    Raises:
        FormatError: A key is damaged.
    """
    first = header.ordered.get(family.id, ())
    if codec_name_of(family) is not None:
        if family.name == TIMERS_BY_GROUP or not family.name.startswith(_PROCESSORS):
            return []
        return [_number(decode_first(key, FAMILY_BYTES)[0]) for key in first]
    if family.kind not in ("range", "ts-prefix"):
        return []
    codec = codec_of(family)
    name = _time_column(codec, family)
    if name is None:
        return []
    # Other columns may hold values without a form outside of Spark.
    alone = codec.only([codec.key.names.index(name)], [])
    return [_ms(alone.decode_key(key)[name], name) for key in first]


def _time_column(codec: FamilyCodec, family: Family) -> str | None:
    if family.kind == "ts-prefix":
        return _EVENT_TIME if codec.key.names[-1] == _EVENT_TIME else None
    field = codec.key.fields[family.params[0]]
    kind = getattr(field.type, "name", "")
    if kind == "timestamp" or (kind == "long" and field.name.endswith(_MS)):
        return field.name
    return None


def _ms(value: Any, name: str) -> int:
    if isinstance(value, datetime):
        at = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return int(at.timestamp() * 1000)
    if isinstance(value, Internal):  # a timestamp that Python has not
        return int(value) // 1000
    # Spark keeps event times in microseconds.
    return _number(value) // (1000 if name == _EVENT_TIME else 1)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise FormatError("reading the times of keys", found="a time is not a number")
    return value
