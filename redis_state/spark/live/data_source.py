"""Data source ``redis_state``: a plan pins one version, tasks read it (docs/dataframes.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from redis_state import config as options_table
from redis_state.backend.client import Client
from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import ConfigError, UsageError
from redis_state.ids import DEFAULT_STORE
from redis_state.protocol.kept import is_keep_name
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.feed.change_table import change_schema
from redis_state.reader.pinned import Pinned
from redis_state.reader.state_table import StateTable
from redis_state.reader.version_request import CONFIRMED, LATEST, UNCOMMITTED
from redis_state.rows.arrow_types import cast_whole
from redis_state.rows.text_values import keys_of_json
from redis_state.spark.frames import as_arrow
from redis_state.spark.live.change_stream import (
    STREAM_OPTIONS,
    ChangeStream,
    has_limits,
    stream_options,
)
from redis_state.spark.live.live_state import LiveState
from redis_state.spark.worker import WORKER
from redis_state.types.decoding import Texts, Variants, decoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_WHAT = "reading state as a DataFrame"
_QUERY, _OPERATOR, _STORE, _FAMILY = "query", "operator", "store", "family"
_AT, _KEYS = "at", "keys"
_TEXT, _VARIANT = "text", "variant"
_OWN = {
    name.lower(): name
    for name in (_QUERY, _OPERATOR, _STORE, _FAMILY, _AT, _KEYS, _TEXT, _VARIANT, *STREAM_OPTIONS)
}
_PATH = "path"
"""Name of the option that `load("flights")` sets."""


def state_of(options: Mapping[str, str]) -> LiveState:
    """Parses the options of a DataFrame, in any case.

    Raises:
        ConfigError: An option is wrong, or contains a secret.
    """
    given: dict[str, object] = {}
    own = _own(options)
    known = {
        spelling.lower(): option
        for option in options_table.options().values()
        for spelling in (option.name, option.python_name)
    }
    for name, value in options.items():
        lower = name.lower()
        if lower in _OWN or lower == _PATH:
            continue
        option = known.get(lower)
        if option is None:
            raise ConfigError(
                _WHAT,
                found=f"there is no option '{name}'",
                advice=f"Options: {', '.join(_OWN.values())}, and those of docs/configuration.md.",
            )
        if option.secret:
            raise ConfigError(
                _WHAT,
                found=f"the option '{option.name}' is a secret, and Spark's plans show options",
                advice=f"Give passwordFile, or set {PASSWORD_VARIABLE} for driver and executors.",
            )
        given[option.name] = value
    if not own.get(_QUERY):
        raise ConfigError(
            _WHAT, found="no query is named", advice='Give .option("query", "flights").'
        )
    at = own.get(_AT, CONFIRMED)
    return LiveState(
        options_table.parse(given),
        own[_QUERY],
        _number(_OPERATOR, own.get(_OPERATOR, "0")),
        own.get(_STORE, DEFAULT_STORE),
        own.get(_FAMILY, DEFAULT_FAMILY),
        at if at in (CONFIRMED, LATEST, UNCOMMITTED) or is_keep_name(at) else _number(_AT, at),
        decoding_of(
            cast("Texts", own.get(_TEXT, "strict")), cast("Variants", own.get(_VARIANT, "json"))
        ),
    )


def _own(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the data source's own options, by their lower-case names."""
    found = {name.lower(): value for name, value in options.items()}
    if _PATH in found:
        found.setdefault(_QUERY, found[_PATH])
    return {name: value for name, value in found.items() if name in _OWN}


def schema_of(options: Mapping[str, str]) -> StructType:
    """Returns the columns of a state, or with `since` those of its changes, as Spark's types.

    Raises:
        RedisStateError: See `state_of` and `LiveState.pinned`.
    """
    state = state_of(options).with_password()
    with closing(Client(state.config)) as client:
        if stream_options(_own(options)) is not None:
            return spark_schema(change_schema(state.codec(client, state.pinned())))
        return spark_schema(state.table(client, state.pinned()).schema)


def spark_schema(schema: pa.Schema) -> StructType:
    """Converts columns to Spark's types.

    Raises:
        UsageError: Spark's exchange with Python has no such type.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(schema)
    except PySparkException as error:
        kinds = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise UsageError(
            _WHAT,
            found="Spark's exchange with Python does not know the type of a column",
            advice=f"Choose other columns by schema(…). Columns: {kinds}.",
        ) from error


def state_reader(options: Mapping[str, str], schema: StructType) -> StateReader:
    """Creates the reader of these columns.

    Raises:
        ConfigError: An option is wrong, or is for streams.
    """
    if stream_options(_own(options)) is not None:
        raise ConfigError(
            _WHAT,
            found="the option 'since' is for streams",
            advice="Use spark.readStream, or omit it.",
        )
    return StateReader(state_of(options), schema, _own(options).get(_KEYS))


def stream_reader(options: Mapping[str, str], schema: StructType) -> ChangeStream:
    """Creates the stream reader of these columns.

    Raises:
        ConfigError: An option is wrong.
    """
    own = _own(options)
    for name in (_AT, _KEYS):
        if name in own:
            raise ConfigError(
                "reading changes as a stream",
                found=f"the option '{name}' is for spark.read",
                advice="Omit it: 'since' sets where a stream begins, and a stream has all keys.",
            )
    found = stream_options(own)
    if found is None:
        raise ConfigError(
            "reading changes as a stream",
            found="the start of the stream is not set",
            advice='Give .option("since", "start") for the whole state and later changes, '
            '"latest" for changes from now on, a token, or the number of a batch.',
        )
    if not has_limits():
        return ChangeStream(state_of(options), found, schema)
    from redis_state.spark.live.limited_stream import LimitedStream

    return LimitedStream(state_of(options), found, schema)


@dataclass
class _RowPartition(InputPartition):
    """Input of one task.

    Attributes:
        keys: Keys to read; ``None`` for all rows.
    """

    pinned: Pinned
    keys: list[dict[str, Any]] | None = None


class StateReader(DataSourceReader):
    """Plans a read on the driver, and reads in tasks, to which Spark pickles it.

    The reader takes no filters (`pushFilters`). Up to Spark 4.3, a plan with the filters of one use
    of a DataFrame or view is reused by all other uses, which would then lack rows.

    Args:
        keys: The option `keys`.
    """

    def __init__(self, state: LiveState, schema: StructType, keys: str | None = None) -> None:
        self._state = state
        self._schema = schema
        self._keys = keys

    def partitions(self) -> Sequence[InputPartition]:
        """Plans one task for each partition of the state, all at one version; one task for keys.

        Raises:
            ConfigError: The keys are malformed.
            RedisStateError: See `LiveState.pinned`.
        """
        state = self._state.with_password()
        pinned = state.pinned()
        if self._keys is None:
            return [_RowPartition(pinned.only([one])) for one in pinned.partitions]
        with closing(Client(state.config)) as client:
            columns = state.table(client, pinned).key
        return [_RowPartition(pinned, keys_of_json(columns, self._keys))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a partition.

        Raises:
            StateError: Retention was faster than the query, which can be started again.
            RedisStateError: See `OperatorState.to_batches`.
        """
        if not isinstance(partition, _RowPartition):
            return  # a state without partitions
        state = self._state.with_password()
        table = state.table(WORKER.client(state.config), partition.pinned)
        wanted = as_arrow(self._schema)
        for batch in table.batches(_names(table, wanted), partition.keys):
            yield _cast(batch, wanted)


def _names(table: StateTable, wanted: pa.Schema) -> list[str]:
    missing = [name for name in wanted.names if name not in table.schema.names]
    if missing:
        raise UsageError(
            _WHAT,
            found=f"the state has no column '{missing[0]}'",
            advice=f"Columns: {', '.join(table.schema.names)}.",
        )
    return list(wanted.names)


def _cast(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        cast_whole(column, field.type, name=field.name, what=_WHAT)
        for field, column in zip(wanted, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"option '{name}'",
            found="it is not a whole number"
            + (f", '{CONFIRMED}', '{LATEST}', '{UNCOMMITTED}' or a name" if name == _AT else ""),
            advice="Give the number of Spark's operator, such as 0."
            if name == _OPERATOR
            else "Give a batch id, such as 41, or omit it.",
        )
    return int(text)
