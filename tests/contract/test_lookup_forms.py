"""Values and keys that are not UTF-8 in `lookup`: found by their bytes, read in the chosen form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from redis_state.errors import UnreadableError
from redis_state.spark.live import lookup_task
from redis_state.spark.live.live_state import LiveState
from redis_state.spark.live.lookup_task import PIN, LookUp, VersionChoice, name_of
from redis_state.spark.worker import WORKER
from redis_state.types.decoding import Decoding, Texts
from redis_state.types.values import TextBytes
from tests.contract.planting import Planted, family, schema
from tests.contract.test_lookup_task import state_of
from tests.support.redis_server import RedisServer


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    yield
    WORKER.close()
    lookup_task._read.clear()


def test_look_ups_in_other_forms_have_names_of_their_own(redis_server: RedisServer) -> None:
    state = state_of(redis_server)
    names = {
        name_of(replace(state, decoding=decoding), ["code"], {}, inner=False)
        for decoding in (
            Decoding(),
            Decoding(text="replace"),
            Decoding(text="surrogates"),
            Decoding(variant="binary"),
        )
    }
    assert len(names) == 4
    assert name_of(state, ["code"], {}, inner=False) in names


BAD = b"UA\xff"


@pytest.fixture
def bad_texts(redis_server: RedisServer) -> LiveState:
    layout = family(schema(carrier="string"), schema(name="string", count="long"))
    planted = Planted(redis_server.client(), layout)
    planted.register()
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"carrier": TextBytes(BAD)}, {"name": TextBytes(BAD), "count": 1}),
        ({"carrier": "AA"}, {"name": "ä", "count": 2}),
        # What a reader makes of the first key is another key.
        ({"carrier": "UA\ufffd"}, {"name": "other", "count": 3}),
    ]
    planted.commit(1, rows)
    return state_of(redis_server)


def found_by(state: LiveState, keys: list[bytes], columns: dict[str, pa.DataType]) -> Any:
    schema = pa.schema([("code", pa.string()), *columns.items()])
    task = LookUp(state, ("code",), tuple(columns), inner=False, schema=schema)
    codes = pa.array(keys, pa.binary()).view(pa.string())
    version = VersionChoice(state, "x").run(None)
    batch = pa.RecordBatch.from_pydict({"code": codes, PIN: [version] * len(keys)})
    (found,) = task.run(iter([batch]))
    assert found.column("code").cast(pa.binary()).to_pylist() == keys
    return [tuple(row) for row in zip(*(found.column(name).to_pylist() for name in columns),
            strict=True)]  # fmt: skip


@pytest.mark.parametrize("text", ["strict", "replace", "surrogates"])
@pytest.mark.parametrize("many", [1, 20])
def test_key_that_is_not_utf_8_is_found_by_its_bytes(
    bad_texts: LiveState, text: Texts, many: int
) -> None:
    state = replace(bad_texts, decoding=Decoding(text=text))
    others = [f"k{n}".encode() for n in range(2 * many)]
    keys = [BAD, b"AA", "UA\ufffd".encode(), b"\xff", *others]
    found = found_by(state, keys, {"count": pa.int64()})
    assert found[:4] == [(1,), (2,), (3,), (None,)]


def test_value_that_is_not_utf_8_is_read_as_chosen(bad_texts: LiveState) -> None:
    columns = {"name": pa.string()}
    with pytest.raises(UnreadableError, match="text='replace'"):
        found_by(bad_texts, [BAD, b"AA"], columns)
    state = replace(bad_texts, decoding=Decoding(text="replace"))
    assert found_by(state, [BAD, b"AA"], columns) == [("UA\ufffd",), ("ä",)]
