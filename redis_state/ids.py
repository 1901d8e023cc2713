"""Value types: what a partition, a version and a segment are called."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_STORE = "default"
EMPTY_UID = "-"
NUMBER_MAX = (1 << 63) - 1

_GEN = re.compile(r"[0-9a-f]{32}")
_UID = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def is_gen(text: str) -> bool:
    """Whether the text is a checkpoint id: 32 lower-case hexadecimal digits."""
    return _GEN.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Whether the text can name an attempt or the writer of a snapshot."""
    return text != EMPTY_UID and _UID.fullmatch(text) is not None


def text_number(text: str) -> int | None:
    """A text number of the format; ``None`` if the text is none."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number <= NUMBER_MAX else None


@dataclass(frozen=True, slots=True)
class StoreId:
    """A store of an operator.

    Attributes:
        gen: The checkpoint id.
        store: Spark's store name, ``default`` unless the operator has several.
        tenant: Empty, or the option `keyPrefix` followed by a colon.
    """

    gen: str
    operator: int
    store: str = DEFAULT_STORE
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class PartitionId:
    """One partition of a store."""

    store: StoreId
    partition: int

    def __str__(self) -> str:
        of = self.store
        return f"operator {of.operator} partition {self.partition} store {of.store}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A version and the attempt that wrote it."""

    version: int
    uid: str


EMPTY = Pin(0, EMPTY_UID)
