"""Output of commands for planted queries: tables at 80 columns, JSON, files; and their sources."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redis_state import keys
from redis_state.cli.main import main
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol.instances import Instance
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, QUERY_ID, Planted, family, schema, uid
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal of 80 columns, and no profile of whoever runs the tests."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("REDIS_STATE_URL", "REDIS_STATE_PROFILE", "REDIS_STATE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    """Two queries: one that runs, and one that is quiet."""
    client = redis_server.client()
    now_ms = client.time()[0] * 1000
    planted = Planted(client, partitions=2)
    planted.register()
    client.hset(keys.query(GEN), mapping={"run:run": "1 d", "epoch": "1", "seen": str(now_ms)})
    for version in (1, 2, 3):
        carriers = [f"C{number}" for number in range(4 * version)]
        planted.commit(
            version,
            [({"carrier": one}, {"count": version, "total": version / 2}) for one in carriers],
        )
    for number in range(2):
        client.hset(keys.meta(planted.id(number)), "t", str(now_ms))
    client.set(keys.instance(planted.id(0)), Instance("worker-1", "3", "run").encode())
    other = Planted(client, gen="f" * 32, name="a query with a name that is longer than most are")
    other.register()
    other.commit(1, [])
    entry = {"path": "11", "id": "other", "name": other.name, "created": 0, "seen": 1}
    client.hset(keys.checkpoints(), other.gen, json.dumps(entry))
    return planted


@pytest.fixture
def run(planted: Planted, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Run:
    assert planted.gen == GEN

    def run(*words: str, status: int = 0) -> str:
        assert main([*words, "--url", redis_server.url]) == status
        return capsys.readouterr().out

    return run


def table(text: str) -> str:
    """As it is seen: without the blanks at the ends of lines."""
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines), default=0) <= 80
    return "\n".join(lines) + "\n"


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_queries_in_json_have_the_fields_they_had(run: Run) -> None:
    one = next(row for row in objects(run("queries")) if row["name"] == "flights")
    old = {"gen": GEN, "id": QUERY_ID, "name": "flights", "created_ms": 1, "seen_ms": 2}
    assert {name: one[name] for name in old} == old
    assert (one["confirmed_batch"], one["newest_batch"], one["rows"]) == (2, 2, 12)
    assert (one["partitions"], one["served"], one["alive"], one["problems"]) == (2, 1, True, [])
    assert one["bytes"] > 0


def test_show_in_json_says_what_each_object_is(run: Run) -> None:
    found = objects(run("show", "flights"))
    assert [one["kind"] for one in found] == ["query", "store", "partition", "partition"]
    assert found[1]["families"] == ["default"]
    assert [(one["host"], one["executor"]) for one in found[2:]] == [
        ("worker-1", "3"),
        (None, None),
    ]
    assert sum(one["rows"] for one in found[2:]) == found[0]["rows"] == found[1]["rows"] == 12


def test_a_key_is_a_table_for_people(run: Run) -> None:
    words = ("get", "flights")
    assert table(run(*words, "carrier=C1", "--format", "table")) == "count  total\n    3    1.5\n"
    assert run(*words, "carrier=C1", "--at", "0") == '{"count": 1, "total": 0.5}\n'
    assert run(*words, "carrier=C1", "--at", "confirmed", "--json").startswith('{"count": 3')
    assert run(*words, "carrier=?", "--format", "table", status=3) == "There is no such key.\n"
    assert run(*words, "carrier=?", status=3) == "null\n"


def test_rows_are_scanned(run: Run) -> None:
    rows = objects(run("scan", "flights"))
    assert sorted(row["carrier"] for row in rows) == sorted(f"C{n}" for n in range(12))
    assert {(row["count"], row["total"]) for row in rows} == {(3, 1.5)}
    assert len(objects(run("scan", "flights", "--at", "0"))) == 4
    assert len(objects(run("scan", "flights", "--version", "2"))) == 8
    assert len(objects(run("scan", "flights", "--limit", "5"))) == 5
    assert objects(run("scan", "flights", "carrier=C7", "--columns", "total,carrier")) == [
        {"total": 1.5, "carrier": "C7"}
    ]


def test_a_key_that_only_the_newest_version_has_is_mentioned(
    redis_server: RedisServer, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.commit(4, [({"carrier": "new"}, {"count": 1, "total": 0.5})], confirmed=False)

    def said(*words: str, status: int) -> str:
        assert main([*words, "--url", redis_server.url]) == status
        return capsys.readouterr().err

    for command, status in (("get", 3), ("history", 3), ("scan", 0)):
        assert "--at latest" in said(command, "flights", "carrier=new", status=status)
        assert said(command, "flights", "carrier=none", status=status) == ""
    assert said("get", "flights", "carrier=new", "--at", "latest", status=0) == ""


def test_a_newer_version_that_cannot_be_read_changes_no_answer(
    redis_server: RedisServer, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.commit(4, [({"carrier": "new"}, {"count": 1, "total": 0.5})], confirmed=False)
    for number in range(2):
        planted.drop(number, f"d:4:{uid(4)}")
    assert main(["get", "flights", "carrier=new", "--url", redis_server.url]) == 3
    assert capsys.readouterr() == ("null\n", "")


def test_rows_go_into_files(run: Run, tmp_path: Path) -> None:
    text = run("scan", "flights", "--format", "csv", "--columns", "carrier,count")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {row["carrier"] for row in lines} == {f"C{n}" for n in range(12)}
    path = tmp_path / "rows.parquet"
    assert run("scan", "flights", "--format", "parquet", "--output", str(path)) == ""
    found = pq.read_table(path)
    assert found.column_names == ["carrier", "count", "total"]
    assert sorted(found["carrier"].to_pylist()) == sorted(f"C{n}" for n in range(12))
    assert [one.name for one in tmp_path.glob("rows*")] == ["rows.parquet"]
    plain = tmp_path / "rows.jsonl"
    assert run("scan", "flights", "--output", str(plain)) == ""
    assert len(objects(plain.read_text("utf-8"))) == 12


def test_table_is_cut_with_a_note(redis_server: RedisServer, run: Run) -> None:
    many = Planted(redis_server.client(), gen="e" * 32, name="many")
    many.register()
    many.commit(1, [({"carrier": f"{n}"}, {"count": n, "total": 0.0}) for n in range(300)])
    found = run("scan", "many", "--format", "table").splitlines()
    assert (len(found), found[-1]) == (102, "The first 100 rows; --limit 0 prints all.")
    assert len(run("scan", "many", "--format", "table", "--limit", "0").splitlines()) == 301


def test_a_key_of_several_columns_has_a_beginning(redis_server: RedisServer, run: Run) -> None:
    layout = family(schema(user="string", day="long"), schema(user="string", n="long"))
    planted = Planted(redis_server.client(), gen="d" * 32, name="days", family=layout)
    planted.register()
    planted.commit(
        1,
        [({"user": user, "day": day}, {"user": "x", "n": day}) for user in "ab" for day in (1, 2)],
    )
    rows = objects(run("scan", "days", "user=b"))
    assert sorted(row["day"] for row in rows) == [1, 2]
    # A value column beside a key column of its name.
    assert {row["user"] for row in rows} == {"b"}
    assert {row["value.user"] for row in rows} == {"x"}
    (row,) = objects(run("scan", "days", "day=2", "user=b"))
    assert row["day"] == 2
    first = failed(redis_server, "scan", "days", "day=2")
    assert "Key columns, in their order: user, day." in first
    assert "Key columns: user, day." in failed(redis_server, "scan", "days", "week=2")


def test_diff_prints_changes_between_batches(run: Run) -> None:
    one = {"key": {"carrier": "C11"}, "before": None, "after": {"count": 3, "total": 1.5}}
    found = objects(run("diff", "flights", "1", "2"))
    assert {"change": "inserted", **one} in found
    assert sorted(row["change"] for row in found) == ["inserted"] * 4 + ["updated"] * 8
    back = objects(run("diff", "flights", "2", "1"))
    assert sorted(row["change"] for row in back) == ["removed"] * 4 + ["updated"] * 8
    assert len(objects(run("diff", "flights", "-1"))) == 12
    assert "change,key,before,after" in run("diff", "flights", "1", "--format", "csv")


def test_history_prints_the_values_of_a_key(run: Run) -> None:
    found = objects(run("history", "flights", "carrier=C1"))
    assert [(row["batch"], row["value"]["count"]) for row in found] == [(2, 3), (1, 2), (0, 1)]
    assert len(objects(run("history", "flights", "carrier=C1", "--limit", "1"))) == 1
    assert run("history", "flights", "carrier=none", status=3) == ""


def test_feed_continues_after_its_token(run: Run) -> None:
    whole = objects(run("changes", "flights", "--since", "start"))
    last = whole.pop()
    assert (last["batch"], last["rows"], last["whole"]) == (2, 12, True)
    assert all(row["batch"] == 2 and row["value"]["count"] == 3 for row in whole)
    assert run("changes", "flights", "--since", last["token"]) == ""
    lines = objects(run("changes", "flights", "--since", "0"))
    assert [(row["batch"], row["rows"]) for row in lines if "token" in row] == [(1, 8), (2, 12)]


def test_rows_of_a_store_of_python(redis_server: RedisServer, run: Run) -> None:
    id_ = StateStoreProviderId(StateStoreId("visits", 0, 0), "run-1")
    provider = StateStoreProvider(id_, config=redis_server.url)
    try:
        store = provider.get_store(0)
        store.put_many({"ann": 1, "andy": {"n": 2}, ("de", 7): [1], ("de", 8): None, 5: b"\x00"})
        provider.get_store(store.commit()).abort()
    finally:
        provider.close()
    assert objects(run("scan", "visits", "key=an")) == [
        {"key": "andy", "value": {"n": 2}},
        {"key": "ann", "value": 1},
    ]
    assert [row["key"] for row in objects(run("scan", "visits", 'key:=["de"]'))] == [
        ["de", 7],
        ["de", 8],
    ]
    assert objects(run("scan", "visits", "key:=5")) == [{"key": 5, "value": "00"}]
    assert objects(run("scan", "visits", "key:=5.0")) == []
    assert len(objects(run("scan", "visits"))) == 5
    assert "versions of this store are not batches" in failed(
        redis_server, "scan", "visits", "--at", "0"
    )
    assert "values of several types" in failed(
        redis_server, "scan", "visits", "--format", "parquet", "--output", "/dev/null"
    )


def failed(server: RedisServer, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "redis_state", *words, "--url", server.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("scan flights --columns carrier,what", "Columns: carrier, count, total."),
        ("scan flights --limit -1", "--limit is below 0"),
        ("scan flights --at newest", "--at is neither a number nor the name of a version"),
        ("scan flights --at 40", "STATE_LOST"),
        (f"scan flights --at {'9' * 5000}", "--at is neither a number nor the name of a version"),
        ("scan flights --format parquet", "--output FILE"),
        ("scan flights --format table --output rows", "--output names a file"),
        ("scan flights --output /no/such/folder/rows", "No such file or directory"),
        ("show flihgts", "Did you mean 'flights'"),
        ("size nothing", "NOT_FOUND"),
        ("top", "Give --once"),
        ("top --once --interval 0", "Give 0.5 to 86400 seconds"),
        ("top --once --interval inf", "Give 0.5 to 86400 seconds"),
    ],
)
@pytest.mark.usefixtures("planted")
def test_wrong_argument_is_named_on_standard_error(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert main([*words.split(), "--url", redis_server.url]) == 1
    caught = capsys.readouterr()
    assert said in caught.err
    assert not caught.out


def test_damaged_partition_is_named_and_others_are_shown(
    run: Run, redis_server: RedisServer, planted: Planted
) -> None:
    client = redis_server.client()
    client.hset(keys.meta(planted.id(1)), f"d:3:{uid(3)}", "- 1 1")
    text = run("show", "flights", "--format", "table")
    assert "partition 1 store default: an entry of its manifest is damaged" in text
    assert "worker-1/3" in text
    assert "The list of families is that of the query's registration: [REDIS_" in text
    assert "problem" in run("queries", "--format", "table")
    assert len(objects(run("show", "flights"))) == 4
    assert objects(run("size", "flights", "--by", "family"))


def test_control_characters_are_escaped_in_output(redis_server: RedisServer, run: Run) -> None:
    evil = "\x1b[2J[red]x\r\n\x9b1m"
    planted = Planted(redis_server.client(), gen="c" * 32, name=evil, partitions=1)
    planted.register()
    planted.commit(1, [({"carrier": evil}, {"count": 1, "total": 0.0})])
    for words in (("queries",), ("show", "c" * 32), ("scan", "c" * 32), ("top", "--once")):
        text = run(*words, *(() if words[0] == "top" else ("--format", "table")))
        assert not {"\x1b", "\r", "\x9b"} & set(text)
    assert "\\x1b[2J[red]x\\r\\n\\x9b1m" in run("scan", "c" * 32, "--format", "table")


def test_top_shows_each_query_on_one_line(run: Run) -> None:
    lines = table(run("top", "--once", "--sort", "name")).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("a query with a name that i…  quiet ")
    (first, second) = objects(run("top", "--once", "--json"))
    assert (first["name"], second["rows_per_s"]) == ("flights", None)


def on_a_terminal(server: RedisServer, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "redis_state", *words, "--url", server.url],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "LINES": "24"},
        start_new_session=True,
    )
    os.close(slave)
    return process, master


def read_until(master: int, wanted: bytes) -> bytes:
    seen = b""

    def found() -> bool:
        nonlocal seen
        while select.select([master], [], [], 0)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:  # it has ended
                return True
        return wanted in seen

    wait_until(found, f"{wanted!r} on the terminal")
    return seen


@pytest.mark.usefixtures("planted")
def test_top_is_renewed_until_q(redis_server: RedisServer) -> None:
    process, master = on_a_terminal(redis_server, "top", "--interval", "0.5")
    try:
        read_until(master, b"q ends")
        redis_server.client().hset(keys.meta(Planted(redis_server.client()).id(0)), "o", "x")
        read_until(master, b"problem")
        os.write(master, b"q")
        read_until(master, b"\x1b[?1049l")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.usefixtures("planted")
def test_people_get_a_table_without_asking(redis_server: RedisServer) -> None:
    process, master = on_a_terminal(redis_server, "queries")
    try:
        assert b"QUERY" in read_until(master, b"WRITTEN")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_without_rich_a_table_is_refused(
    run: Run,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert objects(run("queries"))
    assert main(["queries", "--format", "table", "--url", redis_server.url]) == 1
    assert "pip install 'redis-state[cli]'" in capsys.readouterr().err


@pytest.mark.usefixtures("planted")
def test_names_in_messages_do_not_change_the_terminal(
    planted: Planted, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        planted.gen, planted.name = f"{number:032x}", f"\x1b]0;title\x07{number}" + "x" * 500
        planted.register()
    assert main(["show", "nosuch", "--url", redis_server.url]) == 1
    told = capsys.readouterr().err
    assert "\\x1b]0;title\\x07" in told
    assert told.removesuffix("\n").isprintable()
    assert "more." in told
    assert len(told) < 3000


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("words", ["show flights", "show flights --format table"])
def test_closed_output_pipe_is_not_an_error(redis_server: RedisServer, words: str) -> None:
    command = f"{sys.executable} -m redis_state {words} --url {redis_server.url}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.returncode in (0, 141)
    assert done.stderr == ""
