"""Values of options: Python objects as text, and text as checked values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from redis_state.config.table import Option, option_table
from redis_state.errors import ConfigError
from redis_state.url import Location, parse_url

OptionValue = str | int | bool | Location

_BOOLS = {"true": True, "false": False}


def _number(option: Option, text: str, number: int, unit: str = "") -> int:
    low, high = option.minimum, option.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise option.error(f"{text} is out of range", f"Allowed: {low} to {high}{unit}.")
    return number


def _parse_int(option: Option, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise option.error(f"'{text}' is not a whole number", "Give a number such as 100.")
    return _number(option, text, int(text))


def _parse_units(option: Option, text: str, *, name: str, example: str) -> int:
    units = option_table().units[option.type]
    match = re.fullmatch(r"([0-9]{1,15})([a-z]{1,3})", text.lower())
    factor = units.get(match[2]) if match else None
    if match is None or factor is None:
        advice = f"Give a whole number and a unit ({', '.join(units)}), such as {example}."
        raise option.error(f"'{text}' is not a {name}", advice)
    return _number(
        option, text, int(match[1]) * factor, f" {'ms' if name == 'duration' else 'bytes'}"
    )


def _parse_bytes(option: Option, text: str) -> int | str:
    if option.auto and text == "auto":
        return "auto"
    short = re.sub(r"(?<=[kmgtKMGT])[bB]$", "", text)
    return _parse_units(option, short, name="size", example="2g")


def _parse_duration(option: Option, text: str) -> int:
    return _parse_units(option, text, name="duration", example="60s")


def _parse_bool(option: Option, text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise option.error(f"'{text}' is not a truth value", "Give true or false.")
    return _BOOLS[text.lower()]


def _not_accepted(option: Option, text: str) -> ConfigError:
    advice = f"This release accepts: {', '.join(option.values)}."
    return option.error(f"'{text}' is not accepted", advice)


def _parse_enum(option: Option, text: str) -> str:
    if text not in option.values:
        raise _not_accepted(option, text)
    return text


def _parse_durability(option: Option, text: str) -> str:
    match = re.fullmatch(r"none|aof|(?:aof\+)?replicas:([0-9]{1,4})", text)
    if match is None:
        raise _not_accepted(option, text)
    if match[1] is not None:
        _number(option, match[1], int(match[1]), " replicas")
    return text


def _parse_prefix(option: Option, text: str) -> str:
    if not re.fullmatch(option.pattern, text):
        advice = "Give 1 to 64 letters, digits, '_', '.' or '-'."
        raise option.error(f"'{text}' is not a key prefix", advice)
    return text


def _parse_text(option: Option, text: str) -> str:
    if not text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise option.error("it is empty or holds control characters", "Give one line of text.")
    if text != text.strip():
        # Spark strips blanks in a properties file, so the password would depend on how Spark is
        # started.
        raise ConfigError(
            f"option '{option.name}'",
            found="its value begins or ends with a blank",
            advice="Change it, or give a password in 'passwordFile'.",
        )
    return text


def _parse_url(_option: Option, text: str) -> Location:
    return parse_url(text)


_PARSERS: Mapping[str, Callable[[Option, str], OptionValue]] = {
    "bool": _parse_bool,
    "bytes": _parse_bytes,
    "durability": _parse_durability,
    "duration": _parse_duration,
    "enum": _parse_enum,
    "int": _parse_int,
    "path": _parse_text,
    "prefix": _parse_prefix,
    "string": _parse_text,
    "url": _parse_url,
}


def parse_value(option: Option, text: str) -> OptionValue:
    """Parses the text of an option.

    Raises:
        ConfigError: The text is malformed, or the value is not allowed.
    """
    return _PARSERS[option.type](option, text)


def to_text(option: Option, value: object) -> str:
    """Converts a Python value to the notation of Spark's configuration.

    Booleans, whole numbers, paths and `datetime.timedelta` are accepted where they fit. A number as
    a duration means seconds.

    Raises:
        ConfigError: The value's Python type does not fit the option.
    """
    match option.type, value:
        case "bool", bool():
            return "true" if value else "false"
        case _, bool():
            pass
        case ("int", int()) | ("path", Path()):
            return str(value)
        case "duration", timedelta():
            return f"{value // timedelta(milliseconds=1)}ms"
        case "duration", int() | float():
            return f"{round(value * 1000)}ms" if 0 <= value < math.inf else f"{value}s"
        case _, str():
            # A secret keeps its blanks; around other values they are never intended.
            return value if option.secret else value.strip()
    hint = {
        "bytes": "a text such as '2g'",
        "duration": "a text such as '60s', seconds or a timedelta",
    }
    expected = hint.get(option.type, "a text")
    raise option.error(f"it is a Python {type(value).__name__}", f"Give {expected}.")


def duration_ms(option: Option, value: object) -> int:
    """Parses a duration that is not itself an option.

    Raises:
        ConfigError: The value is not a duration, or outside the range of `option`.
    """
    return _parse_duration(option, to_text(option, value))
