"""Table of options in `options.json`, which both languages read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from redis_state.errors import ConfigError

_OPERATOR = re.compile(r"([A-Za-z_]+)[._](0|[1-9][0-9]{0,8})")
"""Name of an option of one operator: the name, then the operator id."""


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
        per_operator: True if ``<name>.<operator id>`` is an option too, for one operator of Spark.
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
    per_operator: bool = False

    @property
    def python_name(self) -> str:
        """Name as a keyword argument: ``tls.caFile`` is ``tls_ca_file``."""
        return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), self.name).replace(".", "_")

    def error(self, found: str, advice: str) -> ConfigError:
        """Returns the error for a wrong value; never shows that of a secret."""
        shown = found if not self.secret else "its value is not allowed"
        return ConfigError(f"option '{self.name}'", found=shown, advice=advice)


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options; `units` are the factors of each suffix, by the type of the option."""

    prefix: str
    spark_minors: tuple[str, ...]
    units: Mapping[str, Mapping[str, int]]
    options: Mapping[str, Option]


@cache
def option_table() -> OptionTable:
    """Returns the table of this release."""
    raw = json.loads(resources.files("redis_state").joinpath("options.json").read_text("utf-8"))
    options: dict[str, Option] = {}
    for row in raw["options"]:
        row["minimum"] = row.pop("min", None)
        row["maximum"] = row.pop("max", None)
        row["values"] = tuple(row.get("values", ()))
        row["needs_any"] = tuple(row.pop("needsAny", ()))
        row["needs_tls"] = row.pop("needsTls", False)
        row["per_operator"] = row.pop("perOperator", False)
        options[row["name"]] = Option(**row)
    return OptionTable(raw["prefix"], tuple(raw["sparkMinors"]), raw["units"], options)


def options() -> Mapping[str, Option]:
    """Returns all options by name, in the order of the table."""
    return option_table().options


def conf_prefix() -> str:
    """Returns the prefix of option names in Spark's configuration."""
    return option_table().prefix


def spark_minors() -> tuple[str, ...]:
    """Returns the Spark versions that this release has a jar for, such as ``4.3``."""
    return option_table().spark_minors


def _of_operator(name: str) -> Option | None:
    """Finds the option of one operator, such as ``stateTtl.3``, which has no row of its own."""
    match = _OPERATOR.fullmatch(name)
    for option in options().values() if match else ():
        if option.per_operator and match and match[1] in (option.name, option.python_name):
            return replace(option, name=f"{option.name}.{match[2]}", default=None)
    return None


def option_named(name: str) -> Option:
    """Finds an option by its name, keyword name or full configuration name.

    Raises:
        ConfigError: No option has this name; the message has the nearest one.
    """
    prefix, table = conf_prefix(), options()
    short = name.removeprefix(prefix)
    found = table.get(short) or next((o for o in table.values() if o.python_name == short), None)
    found = found or _of_operator(short)
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
