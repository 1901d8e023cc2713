"""Tasks of `lookup`: one chooses the version, the others read it; no pyspark.

All tasks of a batch must read one version, although each starts at its own time. So a task with one
row chooses the version before the others begin, and Spark adds its result to their rows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import ConfigError, FormatError, NotFoundError, StateError, UsageError
from redis_state.reader.block_cache import ROW_BYTES, BlockCache
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.lookup.row_sizes import mean_row_bytes
from redis_state.reader.state_table import StateTable
from redis_state.spark.live.live_state import LiveState, pin_text
from redis_state.spark.worker import WORKER
from redis_state.types.decoding import AS_WRITTEN
from redis_state.types.values import Internal, TextBytes

if TYPE_CHECKING:
    import pyarrow as pa

PIN = "__redis_state_version"
"""Column that carries the version to the tasks."""

REMEMBERED_MS = 7 * 24 * 3600 * 1000
"""Time for which the version of a batch is remembered, for a rerun."""

ROWS_MAX = 100_000
"""Number of rows that a task looks up together; a larger batch of Spark is not split."""

BYTES_MAX = 64 << 20
"""Approximate bytes of these rows and of the state's rows; a larger batch of Spark is not split."""

_KEPT_MAX = 4
_FORMAT = "1"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookupBatch:
    """A batch of a streaming query with a look-up.

    Attributes:
        query_id: Spark's id of the query.
    """

    query_id: str
    number: int


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Chooses the version of a batch.

    Attributes:
        name: Name of the look-up among those of its query.
    """

    state: LiveState
    name: str

    def run(self, batch: LookupBatch | None) -> str:
        """Returns the version of the batch's first run if readable, else the confirmed version.

        Args:
            batch: ``None`` outside of a streaming query.

        Raises:
            RedisStateError: See `OperatorState.get`.
        """
        state = self.state.with_password()
        if batch is None:
            return pin_text(state.pinned())
        client = WORKER.client(state.config)
        key = keys.looked_up(
            batch.query_id, self.name, tenant=keys.tenant_of(state.config.key_prefix)
        )
        raw = _remembered(client, key)
        before = _version_in(raw, batch)
        if before is not None:
            try:
                state.reopened(client, before)
            except (StateError, NotFoundError, FormatError):
                _log.info("batch %d of %s reads a newer version", batch.number, batch.query_id)
            else:
                return before
        text = pin_text(state.pinned())
        # Another attempt at the batch may have chosen first: both then read its choice.
        return _version_in(_remember(client, key, raw, batch, text), batch) or text


def _remembered(client: Client, key: str) -> bytes:
    try:
        (raw,) = client.call("looking for the version of a batch", [("GET", key)])
    except ConfigError as error:
        _log.info("versions of batches are not remembered: %s", error)
        return b""
    return raw or b""


def _version_in(raw: bytes, batch: LookupBatch) -> str | None:
    words = raw.decode("utf-8", "replace").split(" ", 2)
    if len(words) < 3 or words[:2] != [_FORMAT, str(batch.number)]:
        return None
    return words[2]


def _remember(client: Client, key: str, before: bytes, batch: LookupBatch, text: str) -> bytes:
    """Remembers this version unless another attempt was faster; returns the remembered one."""
    value = f"{_FORMAT} {batch.number} {text}"
    what, ms = "keeping the version of a batch", str(REMEMBERED_MS)
    try:
        (found,) = client.script(what, script("choose"), [key], [before, value, ms])
    except (ConfigError, FormatError) as error:
        # A reader lacks the right to write. A rerun of the batch then takes the version of its
        # time.
        _log.info("versions of batches are not remembered: %s", error)
        return b""
    return found.encode()


def join_names(count: int) -> list[str]:
    """Returns internal column names, since Spark uses names of columns without quotes."""
    return [f"c{number}" for number in range(count)]


def name_of(state: LiveState, on: Sequence[str], columns: Mapping[str, str], *, inner: bool) -> str:
    """Returns a name that identifies a look-up of a query; equal look-ups share a version.

    Args:
        on: See `LookUp`; also for `inner`.
        columns: Added columns, and their names in the result.
    """
    of = (state.query, state.operator, state.store, state.family, state.at)
    words: tuple[Any, ...] = (of, tuple(on), tuple(columns.items()), inner)
    if state.decoding != AS_WRITTEN:
        words += (state.decoding.text, state.decoding.variant)
    return hashlib.sha256(repr(words).encode()).hexdigest()[: keys.STORE_HASH_DIGITS]


@dataclass(frozen=True)
class LookUp:
    """Joins rows with state.

    Attributes:
        on: Columns of the rows by the names of `join_names`, in the order of the key columns.
        columns: Columns of the state to add.
        inner: True if rows without state are left out.
        schema: Schema of the result.
    """

    state: LiveState
    on: tuple[str, ...]
    columns: tuple[str, ...]
    inner: bool
    schema: pa.Schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with the added columns of their keys.

        Raises:
            StateError: The version no longer exists.
            RedisStateError: See `OperatorState.get_many`.
        """
        for group in self._groups(batches):
            for made in self._joined(group):
                if made.num_rows:
                    yield made

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        """Groups batches of one version for one look-up, so that a block is read once."""
        group: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if group and _version(batch) != _version(group[0]):
                yield group
                group, rows, size = [], 0, 0
            own = self._bytes_of(batch)
            if group and (rows + batch.num_rows > ROWS_MAX or size + own > BYTES_MAX):
                yield group
                group, rows, size = [], 0, 0
                own = self._bytes_of(batch)
            group.append(batch)
            rows, size = rows + batch.num_rows, size + own
        if group:
            yield group

    def _joined(self, group: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        read = self._read(group[0])
        table = read.table
        columns = [pa.concat_arrays([one.column(name) for one in group]) for name in self.on]
        keys, places = asked(columns, alone=table.key is None)
        values, there = table.look_up(keys, self.columns)
        read.learn(there.true_count, sum(array.nbytes for array in values))
        start = 0
        for batch in group:
            at = places.slice(start, batch.num_rows)
            start += batch.num_rows
            arrays = [*batch.columns[:-1], *(one.take(at) for one in values)]
            cast = [
                array.cast(field.type) for array, field in zip(arrays, self.schema, strict=True)
            ]
            made = pa.RecordBatch.from_arrays(cast, schema=self.schema)
            yield made.filter(there.take(at).fill_null(False)) if self.inner else made

    def _bytes_of(self, batch: pa.RecordBatch) -> int:
        """Estimates bytes with the state's rows; above `BYTES_MAX` while their size is unknown."""
        each = self._read(batch).row_bytes
        return BYTES_MAX + 1 if each is None else batch.nbytes + batch.num_rows * each

    def _read(self, batch: pa.RecordBatch) -> _Read:
        return _opened(self.state.with_password(), _version(batch))


def _version(batch: pa.RecordBatch) -> str:
    version: str = batch.columns[-1][0].as_py()
    return version


@dataclass(slots=True)
class _Read:
    """Opened state of this worker.

    Attributes:
        row_bytes: Approximate decoded size of a row of the state: the mean, or the largest mean
            found; ``None`` while unknown.
        blocks: Shared cache, since successive versions share most blocks.
    """

    version: str
    client: Client
    table: StateTable
    row_bytes: int | None
    blocks: BlockCache

    def learn(self, rows: int, size: int) -> None:
        """Updates `row_bytes` by the size of these rows."""
        if rows:
            self.row_bytes = max(self.row_bytes or 0, ROW_BYTES + size // rows)


_read: dict[LiveState, _Read] = {}
"""States by use, the most recently used last."""


def _opened(state: LiveState, version: str) -> _Read:
    found = _read.pop(state, None)
    client = WORKER.client(state.config)
    # The worker closes clients that others have displaced.
    if found is None or found.version != version or found.client is not client:
        blocks = BlockCache() if found is None else found.blocks
        pinned = state.reopened(client, version, blocks)
        # The mean over several families says little about one of them.
        alone = len(pinned.info.families) == 1
        each = mean_row_bytes(client, pinned.partitions) if alone else None
        found = _Read(version, client, state.table(client, pinned), each, blocks)
    _read[state] = found
    while len(_read) > _KEPT_MAX:
        del _read[next(iter(_read))]
    return found


def asked(columns: Sequence[pa.Array], *, alone: bool) -> tuple[AskedKeys, pa.Array]:
    """Returns the different keys of rows, and for each row the index of its key.

    As in SQL, a null equals nothing: a row with a null has no key.

    Args:
        alone: True if a key of one column is the value itself, not a tuple.
    """
    import pyarrow as pa

    if not any(pa.types.is_nested(column.type) for column in columns):
        codes, wanted = _coded(columns)
    else:
        codes, wanted = _counted(columns)
    if alone and any(type(value) is TextBytes for key in wanted for value in key):
        raise UsageError(
            "looking state up",
            found="a key is a text that is not UTF-8, which no store of Python has",
            advice="Filter out such rows first.",
        )
    return AskedKeys([key[0] for key in wanted] if alone and len(columns) == 1 else wanted), codes


def _coded(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Implements `asked` without a Python object for each row."""
    import numpy as np
    import pyarrow as pa

    null = np.zeros(len(columns[0]), np.bool_)
    encoded = [column.dictionary_encode() for column in columns]
    code = np.zeros(len(null), np.int64)
    for one in encoded:
        null |= one.indices.is_null().to_numpy(zero_copy_only=False)
        places = one.indices.fill_null(0).to_numpy(zero_copy_only=False)
        # Renumbered for each column, so that the product stays small.
        _, code = np.unique(code * max(1, len(one.dictionary)) + places, return_inverse=True)
    code = code.reshape(-1)
    there = np.flatnonzero(~null)
    _, first, numbers = np.unique(code[there], return_index=True, return_inverse=True)
    rows = pa.array(there[first])
    values = [_values(column.take(rows)) for column in columns]
    codes = np.zeros(len(null), np.int64)
    codes[there] = numbers.reshape(-1)
    return pa.array(codes, mask=null), list(zip(*values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """Returns the values of a column.

    Values without a Python object come as `Internal` or `TextBytes`.
    """
    import pyarrow as pa

    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = [
            None if one is None else _text(one) for one in column.cast(pa.binary()).to_pylist()
        ]
    except (OverflowError, ValueError):
        if pa.types.is_timestamp(column.type):
            whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        else:
            whole = column.cast(pa.int32())
        found = list(map(_value, column, whole.to_pylist()))
    return found


def _text(raw: bytes) -> str | TextBytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return TextBytes(raw)


def _value(scalar: pa.Scalar, whole: int | None) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return None if whole is None else Internal(whole)


def _counted(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Implements `asked` for nested types, which Arrow cannot tell apart."""
    import pyarrow as pa

    wanted: dict[tuple[Any, ...], int] = {}
    try:
        parts = [list(map(_hashable, column.to_pylist())) for column in columns]
    except (OverflowError, ValueError):
        raise UsageError(
            "looking state up",
            found="a struct in a key has a time outside the years 1 to 9999, or a text that is not "
            "UTF-8",
            advice="Filter out such rows first.",
        ) from None
    places = [
        None if None in key else wanted.setdefault(key, len(wanted))
        for key in zip(*parts, strict=True)
    ]
    return pa.array(places, type=pa.int64()), list(wanted)


def _hashable(value: Any) -> Any:
    """Returns a hashable value of a key column; a struct as a tuple of its values.

    Two times of one zone are equal if their clock shows the same, which happens twice at the end of
    summer time. So times are converted to UTC.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    if isinstance(value, dict):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
