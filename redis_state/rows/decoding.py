"""What a reader chooses about values that have several forms outside of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from redis_state.errors import ConfigError

Texts = Literal["strict", "replace", "surrogates"]
"""Bytes of a text that are not UTF-8: raise `UnreadableError`; read each as U+FFFD; or read each as
a lone surrogate, which `str.encode("utf-8", "surrogateescape")` turns back into the byte."""

Variants = Literal["json", "binary"]
"""A VARIANT: its JSON text, or its two binaries as a `Variant`."""

HANDLERS = {"strict": "strict", "replace": "replace", "surrogates": "surrogateescape"}
"""By the choice, Python's handler for errors of its decoder and encoder."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The choices of one reader.

    Attributes:
        columns: The columns that are wanted, as `columns.Columns` names them; ``None`` means all.
            Others are not parsed.

    Raises:
        ConfigError: There is no such choice.
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
    """The choices of a call.

    Raises:
        ConfigError: There is no such choice, or the columns are no list of names.
    """
    if columns is not None and (
        isinstance(columns, str) or not all(isinstance(one, str) for one in columns)
    ):
        raise ConfigError(
            "choosing columns",
            found="they are no list of names",
            advice="Give a list, such as columns=['user', 'count'].",
        )
    return Decoding(text, variant, None if columns is None else tuple(columns))
