"""One text for each value, whichever way out it came: two values are equal if their texts are."""

from __future__ import annotations

import json
import re
import struct
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.spark.fuzz_values.schemas import Kind

_MARKED = re.compile(r"([fdmvnt])<([^>]*)>")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def text(kind: Kind, value: Any) -> str:
    """The text of a value, as this package or as `redis_state` has it in Python."""
    if value is None:
        return "NULL"
    if kind.name == "array":
        return "[" + ",".join(text(kind.parts[0], one) for one in value) + "]"
    if kind.name == "map":
        pairs = value.items() if isinstance(value, dict) else value
        key, part = kind.parts
        return "{" + ",".join(f"{text(key, one)}:{text(part, other)}" for one, other in pairs) + "}"
    if kind.name == "struct":
        parts = value.values() if isinstance(value, dict) else value
        return "(" + ",".join(map(text, kind.parts, parts)) + ")"
    return _atom(kind.name, value)


def settled(given: str) -> str:
    """A text of `literals.written`, with numbers and JSON in one form."""
    return _MARKED.sub(lambda found: _settle(found[1], found[2]), given)


def _settle(mark: str, given: str) -> str:
    match mark:
        case "f" | "d":
            return _real("float" if mark == "f" else "double", float(given))
        case "m":
            return _decimal(Decimal(given))
        case "v":
            return _json(bytes.fromhex(given).decode())
        case "t":
            return str(_nanos_of_day(time.fromisoformat(_padded(given))))
        case _:
            return _nanos(given)


def _nanos(given: str) -> str:
    """Spark leaves zeros out behind the last digit of a second."""
    return f"n<{given.rstrip('0').rstrip('.') if '.' in given else given}>"


def _padded(given: str) -> str:
    """Python 3.10 reads three or six digits of a second."""
    whole, _, fraction = given.partition(".")
    return f"{whole}.{fraction:0<6}"


def _real(name: str, value: float) -> str:
    if value != value:
        return "NaN"
    code = ">f" if name == "float" else ">d"
    return struct.pack(code, value).hex()


def _decimal(value: Decimal) -> str:
    return format(value, "f").replace("-0", "0", 1) if value == 0 else format(value, "f")


def _json(given: str) -> str:
    return "v" + json.dumps(json.loads(given, parse_float=Decimal), sort_keys=True, default=_plain)


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _nanos_of_day(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1_000


def _atom(name: str, value: Any) -> str:
    if name in ("float", "double"):
        return _real(name, float(value))
    if name == "decimal":
        return _decimal(value)
    if name in ("string", "collated", "binary"):
        if isinstance(value, str):
            return value.encode("utf-8", "surrogateescape").hex().upper()
        return bytes(value).hex().upper()
    if name == "variant":
        return _json(value if isinstance(value, str) else str(value))
    if name in ("geometry", "geography"):
        return bytes(value).hex().upper()
    if name == "calendar":
        return "/".join(map(str, value))
    if name.startswith("nanos"):
        return _nanos(str(value))
    return str(_number(value)).lower() if isinstance(value, bool) else str(_number(value))


def _number(value: Any) -> Any:
    """Days, microseconds or nanoseconds of Python's times; a number as it is."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return value.toordinal() - _EPOCH.toordinal()
    if isinstance(value, time):
        return _nanos_of_day(value)
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    return value


def text_of_scalar(kind: Kind, scalar: Any) -> str:
    """The text of an Arrow scalar; Python has no object for far years, and none is made."""
    if not scalar.is_valid:
        return "NULL"
    if kind.name == "array":
        return "[" + ",".join(text_of_scalar(kind.parts[0], one) for one in scalar.values) + "]"
    if kind.name == "map":
        key, part = kind.parts
        pairs = (
            f"{text_of_scalar(key, one['key'])}:{text_of_scalar(part, one['value'])}"
            for one in scalar.values
        )
        return "{" + ",".join(pairs) + "}"
    if kind.name == "struct":
        parts = (text_of_scalar(part, scalar[at]) for at, part in enumerate(kind.parts))
        return "(" + ",".join(parts) + ")"
    if kind.name == "day-time" and isinstance(scalar, pa.MonthDayNanoIntervalScalar):
        # As DuckDB has intervals, which have no months here.
        _, days, nanos = scalar.as_py()
        return str(days * 86_400_000_000 + nanos // 1_000)
    if kind.name in ("date", "timestamp", "timestamp_ntz", "day-time"):
        return str(scalar.value)
    if kind.name in ("string", "collated") and hasattr(scalar, "as_buffer"):
        data: bytes = scalar.as_buffer().to_pybytes()
        return data.hex().upper()
    if kind.name == "calendar":
        months, days, nanos = scalar.as_py()
        return f"{months}/{days}/{nanos // 1_000}"
    return _atom(kind.name, scalar.as_py())
