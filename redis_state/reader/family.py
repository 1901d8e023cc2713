"""Chooses the column family of a store to read, and the codec of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis_state.backend.client import Client
from redis_state.codec.processor_families import EXPIRY_OF
from redis_state.codec.typed_row import ROW_CODEC
from redis_state.errors import ConfigError, NotFoundError
from redis_state.format.header import Family
from redis_state.ids import DEFAULT_STORE
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.scan import families_of
from redis_state.reader.table_columns import RowCodec, only_columns
from redis_state.rows.codec import codec_of
from redis_state.rows.python_codec import codec_name_of, python_codec
from redis_state.rows.typed_rows import TypedRowCodec, typed_row_codec
from redis_state.types.decoding import AS_WRITTEN, Decoding

if TYPE_CHECKING:
    from redis_state.codec import Codec as StoreCodec
    from redis_state.reader.source import Source

_PLACEHOLDERS = tuple(
    ((key,), (value,))
    for key, value in (("key", "value"), ("__dummy__", "__dummy__"), ("dummy", "dummy"))
)
_JOIN = "symmetricHashJoin"
DEFAULT_FAMILY = "default"
"""The column family of every operator but `transformWithState`."""


class FamilyChoice:
    """The family of one name; each version has a family table of its own.

    Args:
        given: The caller's own codec of a store of Python; ``None`` means the codec that the
            store names.
        decoding: The forms of values, and the columns to parse.
    """

    def __init__(
        self,
        client: Client,
        operator: int,
        name: str,
        given: StoreCodec | None,
        decoding: Decoding = AS_WRITTEN,
    ) -> None:
        self.name = name
        self._decoding = decoding
        self._forms = replace(decoding, columns=None)
        self._client = client
        self._what = f"reading family '{name}' of operator {operator}"
        self._given = given
        self._likely: RowCodec | None = None
        self._of_table: tuple[Sequence[Family], RowCodec | None] = ((), None)

    @property
    def known(self) -> RowCodec | None:
        """The codec that `likely` found; ``None`` before its first call."""
        return self._likely

    def likely(self, info: OperatorInfo, partitions: Sequence[Opened]) -> RowCodec:
        """Returns the codec that encodes keys for the first attempt of a look-up.

        Raises:
            NotFoundError: There is no such family.
            ConfigError: The given codec does not fit the store.
        """
        if self._likely is None:
            family = self._in(info.families)
            if family is None or keeps_families(info):
                # The list of operators has the default family only.
                families = families_of(self._client, partitions)
                family = self._in(families) or family
                if family is None or (self.name == DEFAULT_FAMILY and len(families) > 1):
                    raise self._not_found(families or info.families)
            self._likely = self.of(family)
        return self._likely

    def corrected(self, families: Sequence[Family]) -> bool:
        """Adopts the columns of a version's family table; returns whether `likely` had others.

        The list of operators describes the columns of the newest run, also of one that was refused
        because the state has other columns, and a query may continue with other names of columns.
        """
        before, now = self._likely, self.codec(families)
        if now is None or (before is not None and before.columns == now.columns):
            return False
        self._likely = now
        return True

    def codec(self, families: Sequence[Family]) -> RowCodec | None:
        """Returns the codec of the family in a version's table; ``None`` without the family."""
        # Reads of one version bring the very same table.
        table, codec = self._of_table
        if table is not families:
            codec = self._codec(families)
            self._of_table = families, codec
        return codec

    def _codec(self, families: Sequence[Family]) -> RowCodec | None:
        family = self._in(families)
        if family is None:
            return None
        codec = self.of(family)
        if isinstance(codec, TypedRowCodec) and any(
            one.name == f"{EXPIRY_OF}{family.name}" for one in families
        ):
            return replace(codec, expires=True, asked=None)
        return codec

    def of(self, family: Family) -> RowCodec:
        """Returns the codec of a family of this name.

        Raises:
            ConfigError: The given codec does not fit, or a column is missing.
        """
        codec, columns = self._whole(family), self._decoding.columns
        return codec if columns is None else only_columns(codec, columns)

    def _whole(self, family: Family) -> RowCodec:
        name = codec_name_of(family)
        if name == ROW_CODEC and self._given is None:
            return typed_row_codec(family)
        if name is not None:
            return python_codec(family, name, self._given)
        if self._given is not None:
            raise ConfigError(
                self._what,
                found="a codec was given, but this state is kept by Spark",
                advice="Omit the codec: the schema of Spark's rows is known.",
            )
        return codec_of(family, self._forms)

    def be_list(self, codec: RowCodec, *, wanted: bool) -> None:
        """Checks whether each key of the family has a list or one value.

        Raises:
            ConfigError: The family has the other kind.
        """
        if codec.family.multi_value is not wanted:
            has, calls = "one value", "get and items"
            if codec.family.multi_value:
                has, calls = "a list of values", "get_list and list_items"
            raise ConfigError(
                self._what, found=f"it has {has} for each key", advice=f"Use {calls}."
            )

    def _in(self, families: Sequence[Family]) -> Family | None:
        return next((family for family in families if family.name == self.name), None)

    def _not_found(self, families: Sequence[Family]) -> NotFoundError:
        found = "the operator has no such family"
        if self.name == DEFAULT_FAMILY:
            found = "the operator keeps each state variable in a family of its own"
        named = [one for one in families if one.name != DEFAULT_FAMILY and not is_ours(one)]
        names = ", ".join(f"'{one.name}'" for one in named if not one.internal)
        internal = ", ".join(f"'{one.name}'" for one in named if one.internal)
        named_by = "family=…, on the command line --family"
        advice = f"Name one of them by {named_by}: {names}."
        if not names:
            advice = f"It has one family: omit {named_by}."
        return NotFoundError(
            self._what,
            found=found,
            advice=advice + (f" Spark's own: {internal}." if internal else ""),
        )


@dataclass(frozen=True, slots=True)
class FamilySource:
    """A family of one store, and the source that opens the store.

    Attributes:
        source: The query, or a view of the query.
    """

    client: Client
    source: Source
    operator: int
    store: str
    choice: FamilyChoice


def is_ours(family: Family) -> bool:
    """Returns whether a family is internal to a processor: indexes, timers, notes."""
    return family.internal and codec_name_of(family) is not None


def keeps_families(info: OperatorInfo) -> bool:
    """Returns whether an operator keeps its rows in families and leaves the default family empty.

    A join has one store for all families in state formats 3 and 4, and four stores in 1 and 2.
    """
    is_join = info.name == _JOIN and info.store == DEFAULT_STORE
    return is_join or all(map(is_placeholder, info.families))


def is_placeholder(family: Family) -> bool:
    """Returns whether a family is the empty placeholder that Spark declares for an operator.

    `transformWithState` gives the placeholder the columns key and value, a join of state format 4
    a dummy column, a join of format 3 the columns of its first family.
    """
    if family.name != DEFAULT_FAMILY or codec_name_of(family) is not None:
        return False
    codec = codec_of(family)
    return (codec.key.names, codec.values.columns.names) in _PLACEHOLDERS
