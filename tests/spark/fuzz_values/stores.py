"""The ways in through state objects and the Python store: classes made of random types."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass
from datetime import datetime
from typing import Any, NamedTuple

import redis_state
from redis_state import StateStoreId, StateStoreProvider, StateStoreProviderId
from redis_state.errors import RedisStateError
from tests.spark.fuzz_values.objects import NoObjectError, python
from tests.spark.fuzz_values.schemas import Kind, random_kind
from tests.spark.fuzz_values.values import rows_of
from tests.spark.fuzz_values.ways_out import Findings

ROWS = 12
ATOMS = ("boolean", "bigint", "double", "string", "binary", "timestamp")
_HINTS = {
    "boolean": bool, "bigint": int, "double": float, "string": str, "binary": bytes,
    "timestamp": datetime,
}  # fmt: skip


def hint(kind: Kind) -> Any:
    """The type that a program declares for a type of Spark: each struct is a dataclass."""
    if kind.name == "array":
        return list[hint(kind.parts[0])]  # type: ignore[misc]  # made while it runs
    if kind.name == "map":
        return dict[hint(kind.parts[0]), hint(kind.parts[1])]  # type: ignore[misc]  # as above
    if kind.name == "struct":
        named = [(f"f{at}", hint(part)) for at, part in enumerate(kind.parts)]
        return make_dataclass(f"Record{uuid.uuid4().hex[:6]}", named)
    return _HINTS[kind.name]


def build(kind: Kind, declared: Any, value: Any) -> Any:
    """A value as an object of its declared type."""
    if value is None:
        return None
    if kind.name == "array":
        (inner,) = declared.__args__
        return [build(kind.parts[0], inner, one) for one in value]
    if kind.name == "map":
        key, inner = declared.__args__
        pairs = ((build(kind.parts[0], key, k), build(kind.parts[1], inner, v)) for k, v in value)
        return dict(pairs)
    if kind.name == "struct":
        inner = (one.type for one in fields(declared))
        return declared(*map(build, kind.parts, inner, value))
    return python(kind, value)


class Given(NamedTuple):
    """A type with its values."""

    seed: int
    kind: Kind
    declared: Any
    values: list[Any]


def given_of(seed: int) -> Given:
    """The type and values of a seed; what has no object is left out."""
    kind = random_kind(random.Random(f"object {seed}"), atoms=ATOMS)
    declared = hint(kind)
    values = []
    for one in rows_of(kind, f"object {seed}", ROWS):
        try:
            values.append(build(kind, declared, one))
        except NoObjectError:
            continue
    return Given(seed, kind, declared, values)


def same(first: Any, second: Any) -> bool:
    """Returns whether two objects are equal, of the same types, with NaN equal to itself."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return repr(first) == repr(second)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        pairs = zip(first.items(), second.items(), strict=False)
        return len(first) == len(second) and all(same(one, other) for one, other in pairs)
    if hasattr(first, "__dataclass_fields__"):
        names = [one.name for one in fields(first)]
        return all(same(getattr(first, name), getattr(second, name)) for name in names)
    found: bool = first == second
    return found


def state_objects(seeds: Sequence[int]) -> Findings:
    """Encode and decode objects of each seed's type: the same comes back, or it is refused."""
    found = Findings()
    for seed in seeds:
        given = given_of(seed)
        what = f"seed {seed}, {given.kind.ddl}"
        try:
            codec = redis_state.StateObject(given.declared)
        except RedisStateError as error:
            found.failed("state object", what, error)
            continue
        # Those of another type are refused, or come back as they are.
        for value in (*given.values, *given_of(seed + 1).values):
            with found.watching("state object", what):
                back = codec.decode(codec.encode(value))
                found.compared["state object"] += 1
                if not same(back, value):
                    found.fault("state object", what, f"{back!r}, not {value!r}"[:300])
    return found


@contextmanager
def _provider(url: str, name: str) -> Iterator[StateStoreProvider]:
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), uuid.uuid4().hex)
    provider = StateStoreProvider(id_, config=url)
    try:
        yield provider
    finally:
        provider.close()


@dataclass(slots=True)
class _Rows:
    """Rows that were put, by a key that names their seed."""

    kept: dict[Any, Any]
    found: Findings


def python_store(seeds: Sequence[int], url: str) -> Findings:
    """Stores the values of each seed, plain and as keys, and reads them as another process does."""
    rows = _Rows({}, Findings())
    name = f"fuzz {uuid.uuid4().hex}"
    with _provider(url, name) as provider:
        store = provider.get_store(0)
        for seed in seeds:
            kind = random_kind(random.Random(f"plain {seed}"), atoms=ATOMS)
            for at, value in enumerate(rows_of(kind, f"plain {seed}", ROWS)):
                try:
                    _put(store, rows, (seed, at), _listed(python(kind, value)), kind)
                except NoObjectError:
                    continue
        store.commit()
        provider.get_store(1).commit()  # version 1 is confirmed by that
    with _provider(url, name) as provider:
        _compare("python store", dict(provider.get_read_store(1).iterator()), rows)
    with redis_state.connect(url) as reader:
        state = reader.query(name).operator(0)
        _compare("items", dict(state.items(version=1)), rows)
        _compare("get_many", {key: state.get(key, version=1) for key in rows.kept}, rows)
        scanned = {row["key"]: row["value"] for row in state.scan(version=1)}
        _compare("scan", scanned, rows)
        newest = {one.key: one.after for one in state.diff(-1, 0)}
        _compare("diff", newest, rows)
    return rows.found


def _listed(value: Any) -> Any:
    """A value with lists for its tuples, which come back as lists."""
    if isinstance(value, dict):
        return {_listed(key): _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def _put(store: Any, rows: _Rows, key: Any, value: Any, kind: Kind) -> None:
    with rows.found.watching("python store", f"seed {key[0]}, {kind.ddl}"):
        store.put(key, value)
        rows.kept[key] = value


def _compare(way: str, found: dict[Any, Any], rows: _Rows) -> None:
    rows.found.compared[f"python store, {way}"] += len(rows.kept)
    for key in {*found, *rows.kept}:
        back = found.get(key, "nothing")
        if not same(back, rows.kept.get(key, "nothing")):
            what = f"{back!r}, not {rows.kept.get(key)!r}"
            rows.found.fault(f"python store, {way}", f"seed {key[0]}, row {key[1]}", what[:300])
