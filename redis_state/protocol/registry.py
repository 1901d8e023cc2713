"""Queries, operators and partitions that Redis lists (docs/format.md, section 9).

Three functions return the partitions of a checkpoint:

- `counted_partitions` are those of its query. They are authoritative: use them to change or judge
  a checkpoint.
- `listed_partitions` are those of the list of checkpoints, which may lag.
- `served_partitions` are the listed ones, and those that a Python process reported although no
  store ever opened them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.header import FAMILY_ID_MAX, KINDS, Family
from redis_state.ids import NUMBER_MAX, PartitionId, StoreId, is_gen, text_number
from redis_state.protocol.instances import parse_place
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.texts import is_number, parse_object

FORMAT = "1"
PYTHON_OPERATOR = "pythonStateStore"
"""Operator name of Python stores, whose versions are not Spark batches."""
PARTITIONS_MAX = 1 << 20
_FAMILY_PARTS = 8
_ODD_DIGITS = 12
_OPERATOR = b"op:"
_SHOWN_MAX = 80
_LOOKED_FOR_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """A streaming query in the list of checkpoints.

    Attributes:
        gen: Id of the checkpoint, which all its keys carry.
        id: Spark's id of the query. Empty if the state was moved here and no query ran on it yet.
        name: Empty if the query has none.
        created_ms: Time of the checkpoint's first use; milliseconds since 1970.
        seen_ms: Time at which its newest run began to write.
        partitions: Number of partitions by operator and store, according to the list.
        path: Hash of the checkpoint's path, or of the name of a Python store.
        problem: Names the unreadable entry of the list, whose values are left out. Empty if all
            entries of the checkpoint are readable.
    """

    gen: str
    id: str
    name: str
    created_ms: int
    seen_ms: int
    partitions: Mapping[tuple[int, str], int] = field(default_factory=dict)
    path: str = ""
    problem: str = ""

    @property
    def title(self) -> str:
        """Display name: the query's name, else its id, else the gen."""
        return self.name or self.id or self.gen

    @property
    def is_checkpoint(self) -> bool:
        """True if `gen` is the id of a checkpoint, not a made-up name for an unreadable entry."""
        return is_gen(self.gen)


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """A store of a stateful operator.

    Attributes:
        operator: Spark's id of the operator.
        store: Spark's name of the store.
        name: Spark's name of the operator, such as ``stateStoreSave``; may be empty.
        families: Column families, for finding keys by column names.
        alone: True if each partition has versions of its own, as in a standalone Python store.
            Otherwise a batch takes all partitions from one version to the next.
        ahead: Batch b makes version b + `ahead`.
        moved: True if the store was given another number of partitions, and so another checkpoint.
            This checkpoint no longer changes.
    """

    operator: int
    store: str
    name: str
    partitions: int
    families: tuple[Family, ...]
    alone: bool = False
    ahead: int = 1
    moved: bool = False


def list_queries(client: Client, *, tenant: str = "") -> list[QueryInfo]:
    """Lists the queries that keep state in a Redis, under one key prefix.

    A query with an unreadable entry has a `problem`, and can be found only by its gen.

    Raises:
        UnavailableError: The server does not answer.
    """
    (raw,) = client.call("listing the queries", [("HGETALL", keys.checkpoints(tenant=tenant))])
    return [info for info in parse_listing(raw) if info.is_checkpoint]


def parse_listing(raw: Mapping[bytes, bytes]) -> list[QueryInfo]:
    """Parses the list of checkpoints; a damaged entry does not affect others.

    An entry without the id of a checkpoint becomes a `QueryInfo` with a made-up name as its gen, so
    that tools can show the problem.
    """
    partitions: dict[str, dict[tuple[int, str], int]] = {}
    problems: dict[str, str] = {}
    listed: dict[str, QueryInfo] = {}
    for name, value in raw.items():
        raw_gen, separator, rest = name.partition(b":")
        gen = raw_gen.decode("ascii", "replace")
        if not is_gen(gen):
            gen = f"entry-{hashlib.sha256(name).hexdigest()[:_ODD_DIGITS]}"
            shown = name[:_SHOWN_MAX].decode("ascii", "backslashreplace")
            problems[gen] = f"the list of checkpoints has an entry '{shown}', which is not a gen"
            continue
        try:
            if separator:
                count = _partitions(text_number(_text(value)))
                partitions.setdefault(gen, {})[_store(_text(rest))] = count
            else:
                listed[gen] = _listed(gen, value)
        except FormatError as error:
            which = "an entry for its partitions" if separator else "its entry"
            problems[gen] = f"{which} in the list of checkpoints cannot be read: {error.found}"
    return [
        replace(
            listed.get(gen) or QueryInfo(gen, "", "", 0, 0),
            partitions=partitions.get(gen, {}),
            problem=problems.get(gen, ""),
        )
        for gen in sorted({*listed, *problems})
    ]


def is_entry_of(name: bytes, gen: str) -> bool:
    """Returns whether a field of the list of checkpoints is of this checkpoint."""
    return name.partition(b":")[0] == gen.encode()


def _listed(gen: str, raw: bytes) -> QueryInfo:
    entry = _object(raw)
    texts = [_string(entry, name) for name in ("id", "name", "path")]
    return QueryInfo(
        gen, texts[0], texts[1], _whole(entry, "created"), _whole(entry, "seen"), path=texts[2]
    )


def newest_of_folder(queries: Sequence[QueryInfo], info: QueryInfo) -> QueryInfo:
    """Returns the checkpoint that was used last among those of the same folder.

    A folder that is deleted and created again gets a new checkpoint; the state of the old one
    stays.
    """
    same = [one for one in queries if info.path and one.path == info.path]
    return max(same, key=lambda one: (one.seen_ms, one.created_ms), default=info)


def parse_operators(raw: Mapping[bytes, bytes]) -> dict[tuple[int, str], OperatorInfo]:
    """Parses the operators in the hash of a query.

    Raises:
        FormatError: The hash is of another format, or damaged.
    """
    if raw and raw.get(b"f") != FORMAT.encode():
        raise FormatError(
            "reading a query",
            found="it is of a format that this release does not know",
            advice="Use the release of redis-state that wrote it.",
        )
    found: dict[tuple[int, str], OperatorInfo] = {}
    for name, value in raw.items():
        if name.startswith(_OPERATOR):
            place = name.removeprefix(_OPERATOR)
            operator, store = _store(_text(place))
            entry = _object(value)
            families = entry.get("families")
            if not isinstance(families, list):
                raise _bad("an operator has no list of families")
            batch = raw.get(b"batch:" + place)
            found[operator, store] = OperatorInfo(
                operator,
                store,
                _string(entry, "operator"),
                _partitions(entry.get("partitions")),
                tuple(map(_family, families)),
                alone=batch is None and entry.get("operator") == PYTHON_OPERATOR,
                ahead=1 if batch is None else NewestBatch.parse(batch).ahead,
                moved=b"moved:" + place in raw,
            )
    return dict(sorted(found.items()))


def counted_partitions(
    client: Client, gen: str, operators: Iterable[OperatorInfo], *, tenant: str
) -> list[PartitionId]:
    """Returns the partitions of these stores; if no number is counted, the written ones.

    An executor that describes a store outside a task does not know the number of partitions.
    """
    found: list[PartitionId] = []
    for one in operators:
        store = StoreId(gen, one.operator, one.store, tenant)
        count = one.partitions or _written(client, store)
        found += [PartitionId(store, number) for number in range(count)]
    return found


def listed_partitions(info: QueryInfo, *, tenant: str) -> list[PartitionId]:
    """Returns the partitions of a checkpoint, according to the list of checkpoints."""
    return [
        PartitionId(StoreId(info.gen, operator, store, tenant), number)
        for (operator, store), count in sorted(info.partitions.items())
        for number in range(count)
    ]


def served_partitions(client: Client, gen: str, *, tenant: str) -> list[PartitionId]:
    """Returns the partitions of a checkpoint that a process may serve, written or not.

    Raises:
        FormatError: An entry of the checkpoint in the list, or a reported partition, is damaged.
    """
    raw, reported = client.call(
        "looking up partitions",
        [
            ("HGETALL", keys.checkpoints(tenant=tenant)),
            ("HGETALL", keys.places(gen, tenant=tenant)),
        ],
    )
    infos = parse_listing({name: raw[name] for name in raw if is_entry_of(name, gen)})
    for info in infos:
        if info.problem:
            raise _bad(f"checkpoint {gen}: {info.problem}")
    listed = [id_ for info in infos for id_ in listed_partitions(info, tenant=tenant)]
    more = {_place(gen, name, tenant) for name in reported}
    return listed + sorted(more - set(listed), key=str)


def _written(client: Client, store: StoreId) -> int:
    """Counts the written partitions of a store; no gaps, because each batch writes them all."""
    count = 0
    while count < PARTITIONS_MAX:
        chunk = [PartitionId(store, count + number) for number in range(_LOOKED_FOR_AT_ONCE)]
        there = client.call("looking for partitions", [("EXISTS", keys.meta(id_)) for id_ in chunk])
        if 0 in there:
            return count + there.index(0)
        count += len(chunk)
    return count


def _place(gen: str, name: bytes, tenant: str) -> PartitionId:
    place = parse_place(_text(name))
    if place is None:
        raise _bad("a place is malformed")
    operator, partition, store = place
    return PartitionId(StoreId(gen, operator, store, tenant), partition)


def _store(text: str) -> tuple[int, str]:
    digits, separator, store = text.partition(":")
    operator = text_number(digits)
    if operator is None or not separator or not store:
        raise _bad("an entry names no operator and store")
    return operator, store


def _partitions(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= PARTITIONS_MAX:
        raise _bad("a number of partitions is malformed")
    return value


def _family(row: object) -> Family:
    if not isinstance(row, list) or len(row) != _FAMILY_PARTS:
        raise _bad("a column family is malformed")
    id_, name, kind, params, key, value, multi_value, internal = row
    numbers = [*params, id_] if isinstance(params, list) else [None]
    if (
        not all(map(is_number, numbers))
        or id_ > FAMILY_ID_MAX
        or not isinstance(name, str)
        or kind not in KINDS
        or (kind == "prefix" and len(params) != 1)
        or not isinstance(multi_value, bool)
        or not isinstance(internal, bool)
    ):
        raise _bad("a column family is malformed")
    schemas = json.dumps(key), json.dumps(value)
    return Family(id_, name, kind, tuple(params), *schemas, multi_value, internal)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return parse_object(raw)
    except ValueError as error:
        raise _bad("an entry is not a JSON object") from error


def _string(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise _bad(f"'{name}' is not text")
    return value


def _whole(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    if not is_number(value):
        raise _bad(f"'{name}' is not a whole number from 0 to {NUMBER_MAX}")
    return int(value)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except ValueError as error:
        raise _bad("an entry is not UTF-8") from error


def _bad(found: str) -> FormatError:
    return FormatError("reading the list of queries or operators", found=found)
