"""Value types that identify a partition, a version and a segment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from redis_state.process import process_id

DEFAULT_STORE = "default"
EMPTY_UID = "-"
NUMBER_MAX = (1 << 63) - 1
_SHOWN_MAX = 80

_GEN = re.compile(r"[0-9a-f]{32}")
_UID = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def is_gen(text: str) -> bool:
    """Returns whether the text is a checkpoint id: 32 lower-case hexadecimal digits."""
    return _GEN.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Returns whether the text can name an attempt, or the writer of a snapshot."""
    return text != EMPTY_UID and _UID.fullmatch(text) is not None


def text_number(text: str) -> int | None:
    """Parses a number in the format's text form; ``None`` if malformed."""
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
    """Partition of a store."""

    store: StoreId
    partition: int

    def of_gen(self, gen: str) -> PartitionId:
        """Returns the same partition of another checkpoint."""
        return replace(self, store=replace(self.store, gen=gen))

    def __str__(self) -> str:
        of = self.store
        return f"operator {of.operator} partition {self.partition} store {of.store}"


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """Partition of a Python store, by the name of its checkpoint.

    Attributes:
        checkpoint: A name, not a folder: any valid UTF-8 text.
        operator_id: Distinguishes the stores of one checkpoint, like Spark's operator ids.
        store_name: Any non-empty text.
    """

    checkpoint: str
    operator_id: int
    partition_id: int
    store_name: str = DEFAULT_STORE

    def __str__(self) -> str:
        name = self.checkpoint if len(self.checkpoint) <= _SHOWN_MAX else _shortened(self)
        of = f"operator {self.operator_id} partition {self.partition_id}"
        return f"checkpoint {name!r} {of} store {self.store_name[:_SHOWN_MAX]!r}"

    def partition(self, gen: str, *, tenant: str = "") -> PartitionId:
        """Returns the id from which the keys of this partition are built."""
        store = StoreId(gen, self.operator_id, self.store_name, tenant)
        return PartitionId(store, self.partition_id)


def _shortened(id_: StateStoreId) -> str:
    return f"{id_.checkpoint[:_SHOWN_MAX]}…"


@dataclass(frozen=True, slots=True)
class StateStoreProviderId:
    """A partition in one run of a query.

    Attributes:
        run_id: Spark's run id, or any text of 1 to 64 letters, digits, ``_``, ``.`` or ``-``. By
            default each process has its own.
    """

    store_id: StateStoreId
    run_id: str = field(default_factory=process_id)


@dataclass(frozen=True, slots=True)
class Pin:
    """A version and the attempt that wrote it."""

    version: int
    uid: str


EMPTY = Pin(0, EMPTY_UID)
