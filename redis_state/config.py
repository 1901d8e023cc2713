"""Options from the table in `options.json`: names, types and checks."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from redis_state.errors import ConfigError
from redis_state.format.signature import KEY_BYTES_MIN, BlockSigner
from redis_state.url import Location, parse_url

OptionValue = str | int | bool | Location

_BOOLS = {"true": True, "false": False}


PASSWORD_VARIABLE = "REDIS_STATE_PASSWORD"
"""Environment variable with the password for commands and the data source."""


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table of options.

    Attributes:
        default: In the option's own notation; ``None`` means no default.
        minimum: Smallest allowed number: bytes for sizes, milliseconds for durations.
        auto: True if a size may also be the word ``auto``.
        pattern: Regular expression that the whole text must match.
        needs_any: Options of which at least one must be given too.
        excludes: Option that must not be given too.
        needs_tls: True if the URL must use TLS.
    """

    name: str
    type: str
    default: str | int | bool | None
    meaning: str
    since: str
    secret: bool = False
    required: bool = False
    auto: bool = False
    minimum: int | None = None
    maximum: int | None = None
    values: tuple[str, ...] = ()
    pattern: str = ""
    needs_any: tuple[str, ...] = ()
    excludes: str = ""
    needs_tls: bool = False

    @property
    def python_name(self) -> str:
        """Name as a keyword argument: ``tls.caFile`` is ``tls_ca_file``."""
        return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), self.name).replace(".", "_")


@dataclass(frozen=True, slots=True)
class _Table:
    prefix: str
    spark_minors: tuple[str, ...]
    units: Mapping[str, Mapping[str, int]]
    options: Mapping[str, Option]


@cache
def _table() -> _Table:
    raw = json.loads(resources.files("redis_state").joinpath("options.json").read_text("utf-8"))
    options: dict[str, Option] = {}
    for row in raw["options"]:
        row["minimum"] = row.pop("min", None)
        row["maximum"] = row.pop("max", None)
        row["values"] = tuple(row.get("values", ()))
        row["needs_any"] = tuple(row.pop("needsAny", ()))
        row["needs_tls"] = row.pop("needsTls", False)
        options[row["name"]] = Option(**row)
    return _Table(raw["prefix"], tuple(raw["sparkMinors"]), raw["units"], options)


def options() -> Mapping[str, Option]:
    """Returns all options by name, in the order of the table."""
    return _table().options


def conf_prefix() -> str:
    """Returns the prefix of option names in Spark's configuration."""
    return _table().prefix


def spark_minors() -> tuple[str, ...]:
    """Returns the Spark versions that this release has a jar for, such as ``4.3``."""
    return _table().spark_minors


def option_named(name: str) -> Option:
    """Finds an option by its name, keyword name or full configuration name.

    Raises:
        ConfigError: No option has this name; the message has the nearest one.
    """
    prefix, table = conf_prefix(), options()
    short = name.removeprefix(prefix)
    found = table.get(short) or next((o for o in table.values() if o.python_name == short), None)
    if found is None:
        known = {spelling: o for o in table.values() for spelling in (o.python_name, o.name)}
        lower = {spelling.lower(): o for spelling, o in known.items()}
        near = difflib.get_close_matches(short.lower(), list(lower), n=1, cutoff=0.5)
        in_python = "_" in short
        names = {o.name: o.python_name if in_python else o.name for o in table.values()}
        hint = f"Did you mean '{names[lower[near[0]].name]}'? " if near else ""
        raise ConfigError(
            "reading the options",
            found=f"there is no option '{short}'",
            advice=f"{hint}Options: {', '.join(names.values())}.",
        )
    return found


def _bad(option: Option, found: str, advice: str) -> ConfigError:
    shown = found if not option.secret else "its value is not allowed"
    return ConfigError(f"option '{option.name}'", found=shown, advice=advice)


def _number(option: Option, text: str, number: int, unit: str = "") -> int:
    low, high = option.minimum, option.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise _bad(option, f"{text} is out of range", f"Allowed: {low} to {high}{unit}.")
    return number


def _parse_int(option: Option, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise _bad(option, f"'{text}' is not a whole number", "Give a number such as 100.")
    return _number(option, text, int(text))


def _parse_units(option: Option, text: str, *, name: str, example: str) -> int:
    units = _table().units[option.type]
    match = re.fullmatch(r"([0-9]{1,15})([a-z]{1,3})", text.lower())
    factor = units.get(match[2]) if match else None
    if match is None or factor is None:
        advice = f"Give a whole number and a unit ({', '.join(units)}), such as {example}."
        raise _bad(option, f"'{text}' is not a {name}", advice)
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
        raise _bad(option, f"'{text}' is not a truth value", "Give true or false.")
    return _BOOLS[text.lower()]


def _parse_enum(option: Option, text: str) -> str:
    if text not in option.values:
        advice = f"This release accepts: {', '.join(option.values)}."
        raise _bad(option, f"'{text}' is not accepted", advice)
    return text


def _parse_durability(option: Option, text: str) -> str:
    match = re.fullmatch(r"none|aof|(?:aof\+)?replicas:([0-9]{1,4})", text)
    if match is None:
        advice = f"This release accepts: {', '.join(option.values)}."
        raise _bad(option, f"'{text}' is not accepted", advice)
    if match[1] is not None:
        _number(option, match[1], int(match[1]), " replicas")
    return text


def _parse_prefix(option: Option, text: str) -> str:
    if not re.fullmatch(option.pattern, text):
        advice = "Give 1 to 64 letters, digits, '_', '.' or '-'."
        raise _bad(option, f"'{text}' is not a key prefix", advice)
    return text


def _parse_text(option: Option, text: str) -> str:
    if not text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise _bad(option, "it is empty or holds control characters", "Give one line of text.")
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


def to_text(option: Option, value: object) -> str:
    """Converts a Python value to the notation of Spark's configuration.

    Booleans, whole numbers, paths and `datetime.timedelta` are accepted where they fit. A number as
    a
    duration means seconds.

    Raises:
        ConfigError: The value's Python type does not fit the option.
    """
    if option.type == "bool" and isinstance(value, bool):
        return "true" if value else "false"
    if option.type == "int" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if option.type == "duration" and isinstance(value, timedelta):
        return f"{value // timedelta(milliseconds=1)}ms"
    if (
        option.type == "duration"
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    ):
        return f"{round(value * 1000)}ms" if 0 <= value < math.inf else f"{value}s"
    if option.type == "path" and isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        # A secret keeps its blanks; around other values they are never intended.
        return value if option.secret else value.strip()
    hint = {
        "bytes": "a text such as '2g'",
        "duration": "a text such as '60s', seconds or a timedelta",
    }
    expected = hint.get(option.type, "a text")
    raise _bad(option, f"it is a Python {type(value).__name__}", f"Give {expected}.")


def duration_ms(option: Option, value: object) -> int:
    """Parses a duration that is not itself an option.

    Raises:
        ConfigError: The value is not a duration, or outside the range of `option`.
    """
    return _parse_duration(option, to_text(option, value))


@dataclass(frozen=True, slots=True)
class Config:
    """Checked options, one field for each row of the table; sizes in bytes, durations in ms.

    Attributes:
        versions_to_retain: ``None`` means Spark's ``minBatchesToRetain``.
        rescale_to: ``None`` keeps the number of partitions.
        local_memory: ``auto`` or bytes.
        state_bytes_max: ``None`` means no limit, as for `prefix_bytes_max`.
    """

    url: Location
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify_hostname: bool = True
    key_prefix: str | None = None
    versions_to_retain: int | None = None
    ephemeral: bool = False
    adopt: bool = False
    rescale_to: int | None = None
    durability: str = "none"
    signing_key_file: str | None = None
    local_memory: str | int = "auto"
    deadline: int = 60_000
    on_path_change: str = "fail"
    copy_every_batches: int = 0
    state_bytes_max: int | None = None
    prefix_bytes_max: int | None = None
    socket_timeout: int = 5_000
    connections_max: int = 16

    def read_password(self) -> str | None:
        """Returns the password from `password` or the file; ``None`` without a password.

        Raises:
            ConfigError: The file cannot be read or is empty.
        """
        if self.password_file is None:
            return self.password
        try:
            text = Path(self.password_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"reading the password file {self.password_file}",
                found=_why_unread(error),
                advice="Give in 'passwordFile' a UTF-8 file that this user may read.",
            ) from error
        text = re.sub(r"\r?\n\Z", "", text)
        if not text:
            raise ConfigError(
                f"reading the password file {self.password_file}",
                found="it is empty",
                advice="Write the password into the file, or leave the option out.",
            )
        return text

    def read_signer(self) -> BlockSigner | None:
        """Returns the signer with the key in the file; ``None`` without a file.

        Raises:
            ConfigError: The file cannot be read, or is too short.
        """
        if self.signing_key_file is None:
            return None
        try:
            key = re.sub(rb"\r?\n\Z", b"", Path(self.signing_key_file).read_bytes())
        except OSError as error:
            raise _no_key(f"{self.signing_key_file}: {_why_unread(error)}") from error
        if len(key) < KEY_BYTES_MIN:
            raise _no_key(f"{self.signing_key_file}: it has {len(key)} bytes")
        return BlockSigner(key)


def _why_unread(error: Exception) -> str:
    known = {
        FileNotFoundError: "there is no such file",
        IsADirectoryError: "it is a folder",
        PermissionError: "this user may not read it",
        UnicodeDecodeError: "it is not UTF-8",
    }
    return known.get(type(error), type(error).__name__)


def _no_key(found: str) -> ConfigError:
    return ConfigError(
        "reading the signing key",
        found=found,
        advice=(
            f"Give in 'signingKeyFile' a file of at least {KEY_BYTES_MIN} bytes that this user may "
            "read, such as `openssl rand -hex 32` makes."
        ),
    )


def normalize(values: Mapping[str, object]) -> dict[str, str]:
    """Checks options under any of their names, and returns them as text under their table names.

    A value of ``None`` means that the option is not given.

    Raises:
        ConfigError: A name is unknown or given twice, a value is wrong, or two options
            contradict each other.
    """
    return _checked(values)[0]


def parse(values: Mapping[str, object]) -> Config:
    """Checks options under any of their names, and returns them typed; see `normalize`.

    Raises:
        ConfigError: See `normalize`.
    """
    typed = _checked(values)[1]
    fields: dict[str, Any] = {options()[name].python_name: value for name, value in typed.items()}
    return Config(**fields)


def resolve(
    given: Config | str | Mapping[str, object] | None,
    url: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Config:
    """Checks options in any of their forms.

    Args:
        given: Checked options, a URL, or options by any of their names, including the URL.
        url: The server, instead of `given`.
        options: More options, by any of their names.

    Raises:
        ConfigError: See `parse`; or the server is missing, or given twice.
    """
    more = {name: value for name, value in (options or {}).items() if value is not None}
    if isinstance(given, Config):
        if url is not None or more:
            raise ConfigError(
                "reading the options",
                found=(
                    f"'{'url' if url is not None else next(iter(more))}' is given together with "
                    "options that were already checked"
                ),
                advice="Give either config=, or url= and options by their names.",
            )
        return given
    named = {"url": given} if isinstance(given, str) else dict(given or {})
    if url is not None and named.get("url", url) != url:
        raise ConfigError(
            "reading the options",
            found="config= and url= both name a server",
            advice="Give one of them.",
        )
    place = {} if url is None else {"url": url}
    return parse({**named, **place, **more})


def _checked(values: Mapping[str, object]) -> tuple[dict[str, str], dict[str, OptionValue]]:
    texts: dict[str, str] = {}
    for name, value in values.items():
        option = option_named(name)
        if value is None:
            continue
        if option.name in texts:
            raise _bad(option, "it is given twice", "Give it once.")
        texts[option.name] = to_text(option, value)
    typed: dict[str, OptionValue] = {}
    for option in options().values():
        text = texts.get(option.name)
        if text is not None:
            typed[option.name] = _PARSERS[option.type](option, text)
        elif option.required:
            raise _bad(option, "it is missing", "Give it, such as redis://localhost:6379/0.")
        elif option.default is not None:
            typed[option.name] = _PARSERS[option.type](option, to_text(option, option.default))
    _check_together(texts, cast(Location, typed["url"]))
    return texts, typed


def _check_together(given: Iterable[str], endpoint: Location) -> None:
    names = set(given)
    for option in options().values():
        if option.name not in names:
            continue
        if option.excludes in names:
            raise _bad(option, f"'{option.excludes}' is given too", "Give one of the two.")
        if option.needs_any and not names.intersection(option.needs_any):
            needed = " or ".join(f"'{name}'" for name in option.needs_any)
            raise _bad(option, f"{needed} is missing", f"Give {needed} too, or omit it.")
        if option.needs_tls and not endpoint.tls:
            advice = "Use a rediss:// URL, or leave the tls options out."
            raise _bad(option, "the URL is redis://, which has no TLS", advice)
