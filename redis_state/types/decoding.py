"""A reader's choices for values that have several forms outside Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from redis_state.errors import ConfigError

Texts = Literal["strict", "replace", "surrogates"]
"""Handling of text bytes that are not UTF-8.

``strict`` raises `UnreadableError`. ``replace`` reads each byte as U+FFFD. ``surrogates`` reads
each
byte as a lone surrogate, which `str.encode("utf-8", "surrogateescape")` turns back into the byte.
"""

Variants = Literal["json", "binary"]
"""Form of a VARIANT: its JSON text, or its two binaries as a `Variant`."""

HANDLERS = {"strict": "strict", "replace": "replace", "surrogates": "surrogateescape"}
"""Python's codec error handler for each choice of `Texts`."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The choices of one reader.

    Attributes:
        columns: The requested columns, named as in `columns.Columns`; ``None`` means all. Other
            columns are not parsed.

    Raises:
        ConfigError: A choice does not exist.
    """

    text: Texts = "strict"
    variant: Variants = "json"
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check("text", self.text, get_args(Texts))
        _check("variant", self.variant, get_args(Variants))


def _check(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"choosing {name}=",
            found="there is no such choice",
            advice=f"Give one of {', '.join(map(repr, allowed))}.",
        )


AS_WRITTEN = Decoding()


def decoding_of(
    text: Texts, variant: Variants = "json", columns: Sequence[str] | None = None
) -> Decoding:
    """Returns the choices of a call.

    Raises:
        ConfigError: A choice does not exist, or `columns` is not a list of names.
    """
    if columns is not None and (
        isinstance(columns, str) or not all(isinstance(one, str) for one in columns)
    ):
        raise ConfigError(
            "choosing columns",
            found="they are not a list of names",
            advice="Give a list, such as columns=['user', 'count'].",
        )
    return Decoding(text, variant, None if columns is None else tuple(columns))
