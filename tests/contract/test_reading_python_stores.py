"""Live reads of stores that Python keeps give their keys and values, as the store itself does."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_state import StateStoreId, StateStoreProviderId, connect
from redis_state.cli.main import main
from redis_state.codec import MSGPACK, RAW, Codec
from redis_state.errors import ConfigError, UsageError
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

Write = Callable[..., None]


@dataclass(frozen=True)
class Order:
    status: str
    lines: int = 1


@pytest.fixture
def write(redis_server: RedisServer) -> Write:
    """Commits rows, and opens the version, which confirms it."""

    def rows(values: dict[object, object], *, partition: int = 0, codec: Codec = MSGPACK) -> None:
        id_ = StateStoreProviderId(StateStoreId("orders", 0, partition), f"run-{partition}")
        provider = StateStoreProvider(id_, config=redis_server.url, codec=codec)
        try:
            store = provider.get_store(0)
            for key, value in values.items():
                store.put(key, value)
            version = store.commit()
            provider.get_store(version).abort()
        finally:
            provider.close()

    return rows


def test_keys_and_values_of_every_kind(redis_server: RedisServer, write: Write) -> None:
    rows = {
        "o-1": {"status": "open", "lines": [1, 2.5, None, True]},
        ("de", 7): "text",
        7: b"bytes",
        None: 0,
    }
    write(rows)
    with connect(redis_server.url) as reader:
        state = reader.query("orders").operator(0)
        assert {key: state.get(key) for key in rows} == rows
        assert dict(state.items()) == rows
        assert state.get("o-2") is None
        assert repr(state).startswith("OperatorState(Query(name='orders'")
        assert repr(state).endswith("operator=0, store='default', family='default')")
        assert repr(reader) == f"Reader(url='{redis_server.url}')"
        with pytest.raises(UsageError, match="has no encoding"):
            state.get(object())


def test_all_partitions_are_looked_in(redis_server: RedisServer, write: Write) -> None:
    for partition in range(3):
        write({f"k{partition}": partition}, partition=partition)
    with connect(redis_server.url) as reader:
        state = reader.query("orders").operator(0)
        for _ in range(2):
            assert [state.get(f"k{n}") for n in (2, 1, 0, 9)] == [2, 1, 0, None]
        before = reader.client.round_trips
        assert state.get("k2") == 2
        assert reader.client.round_trips == before + 1, "is there a newer version?"
        assert state.get("k9") is None
        assert reader.client.round_trips == before + 3, "is there one, and another partition?"
        write({"k3": 3}, partition=3)
        assert state.get("k3") == 3


def test_raw_bytes_are_read_with_their_codec(redis_server: RedisServer, write: Write) -> None:
    write({b"\x00": b"\xff"}, codec=RAW)
    with connect(redis_server.url) as reader:
        assert reader.query("orders").operator(0).get(b"\x00") == b"\xff"


def test_codec_of_the_writer_restores_its_classes(redis_server: RedisServer, write: Write) -> None:
    codec = MSGPACK.with_values(Order)
    write({"o-1": Order("open", 2)}, codec=codec)
    with connect(redis_server.url) as reader:
        query = reader.query("orders")
        assert query.operator(0).get("o-1") == {"status": "open", "lines": 2}
        assert query.operator(0, codec=codec).get("o-1") == Order("open", 2)
        with pytest.raises(ConfigError, match="written with the codec 'msgpack'"):
            query.operator(0, codec=RAW).get("o-1")


def test_a_codec_of_the_programs_own_has_to_be_given(
    redis_server: RedisServer, write: Write
) -> None:
    own = replace(MSGPACK, name="own")
    write({"o-1": 1}, codec=own)
    with connect(redis_server.url) as reader:
        query = reader.query("orders")
        assert query.operator(0, codec=own).get("o-1") == 1
        with pytest.raises(ConfigError, match=r"operator\(0, codec=…\)"):
            query.operator(0).get("o-1")


def test_command_reads_keys_of_every_type(
    redis_server: RedisServer, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write({"o-1": {"status": "open"}, 7: 0, ("de", 1): "x"})
    get = ["get", "orders", "--url", redis_server.url]
    for word, printed in (
        ("key=o-1", '{"status": "open"}'),
        ("key:=7", "0"),
        ('key:=["de", 1]', '"x"'),
    ):
        assert main([*get, word]) == 0
        assert capsys.readouterr().out.strip() == printed
    assert main([*get, "key=o-2"]) == 3
    assert capsys.readouterr().out.strip() == "null"
    assert main([*get]) == 1
    assert "there are 0 words" in capsys.readouterr().err


def test_a_key_of_another_spelling_is_refused_with_the_right_one(
    redis_server: RedisServer, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write({"o-1": 1})
    for word in ("o-1", ":=7", "order=o-1"):
        assert main(["get", "orders", word, "--url", redis_server.url]) == 1
        said = capsys.readouterr().err
        assert "Write key=text, or key:=JSON" in said
        assert "o-1" not in said


def test_a_first_commit_is_found_by_latest_and_the_commands_say_so(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    id_ = StateStoreProviderId(StateStoreId("carts", 0, 0), "run-1")
    provider = StateStoreProvider(id_, config=redis_server.url)

    def said(*words: str, status: int) -> tuple[str, str]:
        assert main([*words, "--url", redis_server.url]) == status
        found = capsys.readouterr()
        return found.out, found.err

    newer = "A newer version, published but not yet confirmed, has "
    try:
        store = provider.get_store(0)
        store.put("ann", {"items": 1})
        store.commit()
        read = f"{newer}this key: read it with --at latest.\n"
        assert said("get", "carts", "key=ann", status=3) == ("null\n", read)
        assert said("get", "carts", "key=ann", "--at", "latest", status=0) == (
            '{"items": 1}\n', "")  # fmt: skip
        assert said("history", "carts", "key=ann", status=3) == (
            "", f"{newer}this key: read it with get --at latest.\n")  # fmt: skip
        rows = f"{newer}such rows: read them with --at latest.\n"
        assert said("scan", "carts", status=0) == ("", rows)
        assert said("scan", "carts", "key=a", status=0) == ("", rows)
        # Nobody is told of what is nowhere, nor where a version was named.
        assert said("get", "carts", "key=bob", status=3) == ("null\n", "")
        assert said("history", "carts", "key=bob", status=3) == ("", "")
        assert said("scan", "carts", "key=b", status=0) == ("", "")
        assert said("get", "carts", "key=ann", "--version", "0", status=3) == ("null\n", "")
        assert said("scan", "carts", "--version", "0", status=0) == ("", "")
        provider.get_store(1).abort()
        assert said("get", "carts", "key=ann", status=0) == ('{"items": 1}\n', "")
    finally:
        provider.close()


def test_tables_have_keys_and_values_as_structs(redis_server: RedisServer, write: Write) -> None:
    write({("de", n): {"status": "open", "lines": [n] if n else None} for n in range(3)})
    write({("fr", 1): {"status": "done", "lines": [1, 2]}}, partition=1)
    with connect(redis_server.url) as reader:
        state = reader.query("orders").operator(0)
        keys = {"_1": "de", "_2": 0}, {"_1": "fr", "_2": 1}
        rows = sorted(state.to_arrow().to_pylist(), key=str)
        assert rows[0] == {"key": keys[0], "value": {"status": "open", "lines": None}}
        assert rows[-1] == {"key": keys[1], "value": {"status": "done", "lines": [1, 2]}}
        assert list(state.scan(prefix=("fr",), columns=["key"])) == [{"key": ("fr", 1)}]
        assert state.to_arrow(prefix=("de",)).num_rows == 3
        assert state.to_arrow(where=lambda row: row["value"]["lines"] == [2]).num_rows == 1
        assert state.to_polars().height == state.count() == len(rows) == 4


def test_values_without_a_common_type_raise_config(redis_server: RedisServer, write: Write) -> None:
    write({"o-1": 1, "o-2": "text"})
    with connect(redis_server.url) as reader:
        state = reader.query("orders").operator(0)
        with pytest.raises(ConfigError, match="column 'value' have no Arrow type in common"):
            state.to_arrow()
        assert state.to_arrow(columns=["key"]).num_rows == 2
        with pytest.raises(ConfigError, match="Columns: key, value"):
            state.to_arrow(columns=["values"])


def test_a_column_may_get_its_type_late(redis_server: RedisServer, write: Write) -> None:
    write({1: None, 2: None, 3: 1, 4: 2.5})
    with connect(redis_server.url) as reader:
        state = reader.query("orders").operator(0)
        assert state.to_arrow()["value"].to_pylist() == [None, None, 1, 2.5]
        with pytest.raises(ConfigError, match="no Arrow type in common"):
            list(state.to_batches(rows=1))


PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3)
STATE_KEYS = PLAIN | st.tuples(PLAIN, PLAIN)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(STATE_KEYS, PLAIN, max_size=12),
    st.dictionaries(STATE_KEYS, PLAIN | st.just("removed"), max_size=6),
    st.lists(STATE_KEYS, max_size=8),
    st.text("ab", min_size=1, max_size=2),
)
def test_many_keys_and_scans_are_as_a_dict_has_them(
    shared_redis_server: RedisServer,
    rows: dict[Any, Any],
    changes: dict[Any, Any],
    asked: list[Any],
    prefix: str,
) -> None:
    # To Python, 1 and True are one key; to the store they are two.
    model = {_typed(key): (key, value) for key, value in rows.items()}
    name = uuid.uuid4().hex
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), "run")
    provider = StateStoreProvider(id_, config=shared_redis_server.url)
    try:
        store = provider.get_store(0)
        for key, value in rows.items():
            store.put(key, value)
        store.commit()
        store = provider.get_store(1)
        for key, value in changes.items():
            if value == "removed":
                store.remove(key)
                model.pop(_typed(key), None)
            else:
                store.put(key, value)
                model[_typed(key)] = (key, value)
        provider.get_store(store.commit()).abort()
    finally:
        provider.close()
    with connect(shared_redis_server.url) as reader:
        state = reader.query(name).operator(0)
        wanted = [*asked, *rows, *changes]
        expected = [model.get(_typed(key), (None, None))[1] for key in wanted]
        assert state.get_many(wanted) == [state.get(key) for key in wanted] == expected
        assert state.count() == len(model)
        scanned = {_typed(row["key"]): row["value"] for row in state.scan()}
        assert scanned == {typed: value for typed, (_, value) in model.items()}
        found = {row["key"] for row in state.scan(prefix=prefix)}
        keys = [key for key, _ in model.values()]
        assert found == {key for key in keys if isinstance(key, str) and key.startswith(prefix)}
        first = [row["key"] for row in state.scan(prefix=("a",))]
        assert sorted(map(repr, first)) == sorted(
            repr(key) for key in keys if isinstance(key, tuple) and key[0] == "a"
        )


def _typed(key: Any) -> str:
    return repr(key)
