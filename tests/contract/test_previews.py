"""Rows of the batch that runs, as readers of uncommitted state see them; planted by the format."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import keys
from redis_state.backend.script import script
from redis_state.errors import ConfigError, UnavailableError
from redis_state.format.header import Tombstone
from redis_state.format.rows import Value
from redis_state.format.segment import SegmentWriter
from redis_state.ids import Pin
from redis_state.live import Reader, connect
from redis_state.maintain.orphans import sweep_orphans
from redis_state.protocol.previews import _committed
from redis_state.reader.versions import open_latest
from tests.contract.planting import Planted, uid
from tests.support.redis_server import RedisServer

UNCOMMITTED = "uncommitted"
ATTEMPT, OTHER = "a" * 32, "b" * 32
RUN = "run"
CARRIERS = ("UA", "AA", "DL", "WN", "B6")
FAR_MS = 4_102_444_800_000


def key(carrier: str) -> dict[str, str]:
    return {"carrier": carrier}


def row(count: int) -> dict[str, Any]:
    return {"count": count, "total": count / 2}


class Running(Planted):
    """A planted query whose batch on top of version 1 runs."""

    def begin(self, every: str = "200") -> None:
        self.register()
        self.client.hset(keys.query(self.gen), "publishEvery", every)
        self.commit(1, [(key(name), row(1)) for name in CARRIERS])

    def slice(
        self,
        partition: int,
        number: int,
        changes: Mapping[str, int | None],
        *,
        version: int = 2,
        attempt: str = ATTEMPT,
        tombstones: Sequence[Tombstone] = (),
    ) -> str:
        """Plants a slice; returns its number and entry."""
        ident = f"u:{version}:{attempt}.{number}"
        rows: dict[bytes, Value] = {
            self.key(key(name)): None if count is None else self.value(row(count))
            for name, count in changes.items()
        }
        writer = SegmentWriter(ident, [self.family, *self.others], self.buckets)
        writer.add(rows)
        entry = writer.finish(ref=uid(version - 1), live=99, tombstones=tombstones)
        if writer.fields:
            name = keys.segment(self.id(partition), ident)
            self.client.hset(name, mapping=dict(writer.fields))  # type: ignore[arg-type]  # its stub
            self.client.pexpire(name, 60_000)
        return f"{number} {entry.text}"

    def preview(
        self,
        partition: int,
        *slices: str,
        version: int = 2,
        attempt: str = ATTEMPT,
        epoch: int = 1,
        expires: int = FAR_MS,
        parent: str | None = None,
    ) -> None:
        """Plants the field of a preview; slices newest first."""
        parent = parent or uid(version - 1)
        head = f"{version} {attempt} {len(slices)} {parent} {epoch} {expires}"
        self.client.hset(keys.meta(self.id(partition)), "u", "|".join([head, *slices]))

    def place(self, carrier: str) -> int:
        return self.partition(key(carrier))


@pytest.fixture
def query(redis_server: RedisServer) -> Iterator[Running]:
    client = redis.Redis.from_url(redis_server.url)
    planted = Running(client)
    planted.begin()
    yield planted
    client.close()


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Reader]:
    with connect(redis_server.url) as found:
        yield found


def counts(reader: Reader, at: str = UNCOMMITTED) -> dict[str, int]:
    state = reader.query("flights").operator()
    return {one["carrier"]: value["count"] for one, value in state.items(at=at)}


def count(reader: Reader, carrier: str) -> int | None:
    found = reader.query("flights").operator().get(key(carrier), at=UNCOMMITTED)
    return None if found is None else int(found["count"])


def committed() -> dict[str, int]:
    return dict.fromkeys(CARRIERS, 1)


def test_slices_apply_over_the_version_the_newest_last(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    first = query.slice(at, 1, {"UA": 2})
    second = query.slice(at, 2, {"UA": 3})
    query.preview(at, second, first)
    assert counts(reader) == committed() | {"UA": 3}
    assert [count(reader, name) for name in ("UA", "DL")] == [3, 1]
    assert counts(reader, "latest") == counts(reader, "confirmed") == committed()


def test_removed_rows_and_ranges_are_gone(query: Running, reader: Reader) -> None:
    at = query.place("AA")
    query.preview(at, query.slice(at, 1, {"AA": None}))
    gone = query.place("DL")
    if gone != at:
        whole = Tombstone(0, None, None)
        query.preview(gone, query.slice(gone, 1, {"DL": 7}, tombstones=[whole]))
    found = counts(reader)
    assert "AA" not in found
    assert count(reader, "AA") is None
    assert gone == at or found["DL"] == 7
    others = [name for name in CARRIERS if query.place(name) == gone and name != "DL"]
    assert gone == at or not found.keys() & set(others)
    assert reader.query("flights").operator().count(at=UNCOMMITTED) == len(found)


def test_view_tells_how_many_partitions_are_uncommitted(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    query.preview(at, query.slice(at, 1, {"UA": 2}))
    view = reader.query("flights").view(at=UNCOMMITTED)
    assert (view.uncommitted, view.version) == (1, 2)
    assert reader.query("flights").view(at="latest").uncommitted == 0


def test_partition_that_committed_early_keeps_its_rows(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    query.delta(at, 2, {query.key(key("UA")): query.value(row(5))}, confirmed=False)
    assert count(reader, "UA") == counts(reader)["UA"] == 5
    assert reader.query("flights").view(at=UNCOMMITTED).uncommitted == 1
    assert counts(reader, "latest") == committed()


def test_partitions_that_committed_early_are_opened_together(
    query: Running, reader: Reader
) -> None:
    flights = reader.query("flights")
    trips = []
    for at in range(query.partitions - 1):
        query.delta(at, 2, {}, confirmed=False)
        before = flights._client.round_trips
        assert flights.view(at=UNCOMMITTED).uncommitted == at + 1
        trips.append(flights._client.round_trips - before)
    assert len(trips) > 1
    assert len(set(trips)) == 1


def test_partition_that_went_back_meanwhile_is_left_out_alone(
    query: Running, reader: Reader
) -> None:
    client = reader.query("flights")._client
    ids = [query.id(at) for at in range(query.partitions)]
    opened = open_latest(client, ids, alone=False)
    gone = replace(opened[0], pin=Pin(9, OTHER))
    assert _committed(client, [gone, *opened[1:]]) == opened[1:]
    assert _committed(client, [gone]) == _committed(client, []) == []


@pytest.mark.parametrize(
    "given",
    [
        {"epoch": 2},
        {"expires": 1},
        {"parent": OTHER},
        {"version": 3},
    ],
    ids=["earlier epoch", "expired", "other parent", "other version"],
)
def test_preview_that_does_not_count_is_not_read(
    query: Running, reader: Reader, given: dict[str, Any]
) -> None:
    at = query.place("UA")
    version = given.get("version", 2)
    query.preview(at, query.slice(at, 1, {"UA": 2}, version=version), **given)
    assert counts(reader) == committed()
    assert reader.query("flights").view(at=UNCOMMITTED).uncommitted == 0


def test_rows_of_an_earlier_run_are_not_beside_those_of_a_newer(
    query: Running, reader: Reader
) -> None:
    at = query.place("UA")
    query.preview(at, query.slice(at, 1, {"UA": 2}))
    newer = next(number for number in range(query.partitions) if number != at)
    query.client.hset(keys.meta(query.id(newer)), mapping={"e": "2", "r": "newer"})
    assert counts(reader) == committed()


def test_mark_of_an_ended_attempt_shows_nothing(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    query.client.hset(keys.meta(query.id(at)), "u", f"2 {ATTEMPT} -")
    assert counts(reader) == committed()


def test_query_that_publishes_nothing_is_told_apart(query: Running, reader: Reader) -> None:
    for every in ("0", None):
        if every is None:
            query.client.hdel(keys.query(query.gen), "publishEvery")
        else:
            query.client.hset(keys.query(query.gen), "publishEvery", every)
        with pytest.raises(ConfigError, match="publishEvery"):
            counts(reader)
    assert counts(reader, "latest") == committed()


def test_slice_that_is_gone_is_never_taken_for_absent_rows(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    first, second = query.slice(at, 1, {"UA": 2}), query.slice(at, 2, {"UA": 3})
    query.preview(at, second, first)
    query.client.delete(keys.segment(query.id(at), f"u:2:{ATTEMPT}.1"))
    with pytest.raises(UnavailableError, match="running batch"):
        counts(reader)


@pytest.mark.usefixtures("query")
def test_what_lasts_refuses_uncommitted_rows(reader: Reader, tmp_path: Path) -> None:
    flights = reader.query("flights")
    with pytest.raises(ConfigError, match="taken back"):
        reader.export("flights", str(tmp_path / "export"), at=UNCOMMITTED)
    with pytest.raises(ConfigError):
        flights.live_view(at="latest")
    with pytest.raises(ConfigError):
        flights.view(at="newest")


def test_live_view_follows_the_running_batch(query: Running, reader: Reader) -> None:
    view = reader.query("flights").live_view(at=UNCOMMITTED, interval_s=1e-9)
    state, at = view.operator(), query.place("UA")
    assert state.get(key("UA"))["count"] == 1
    first = query.slice(at, 1, {"UA": 2})
    query.preview(at, first)
    assert state.get(key("UA"))["count"] == 2
    assert {one["carrier"]: value["count"] for one, value in state.items()}["UA"] == 2
    query.preview(at, query.slice(at, 2, {"UA": 3}), first)
    assert state.get(key("UA"))["count"] == 3
    query.client.hset(keys.meta(query.id(at)), "u", f"2 {ATTEMPT} -")
    assert state.get(key("UA"))["count"] == 1


@pytest.mark.parametrize("command", ["get", "scan", "sql"])
def test_commands_tell_that_rows_may_be_taken_back(
    query: Running, redis_server: RedisServer, command: str
) -> None:
    at = query.place("UA")
    query.preview(at, query.slice(at, 1, {"UA": 2}))
    words = {"sql": ["select count from flights where carrier = 'UA'"]}.get(
        command, ["flights", "carrier=UA"]
    )
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "redis_state", command, *words),
            *("--at", UNCOMMITTED, "--url", redis_server.url, "--json"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"count": 2' in ran.stdout or '"count":2' in ran.stdout
    assert "Uncommitted" in ran.stderr


def test_slices_without_an_expiry_are_swept(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    query.slice(at, 1, {"UA": 2})
    name = keys.segment(query.id(at), f"u:2:{ATTEMPT}.1")
    query.client.persist(name)
    assert sweep_orphans(reader.client).orphans == 1
    assert query.client.pttl(name) > 0


# ---- the script `preview` ------------------------------------------------------------------


def set_preview(
    query: Running,
    partition: int,
    number: int,
    known: str,
    *slices: str,
    run: str = RUN,
    attempt: str = ATTEMPT,
    version: int = 1,
    parent: str = uid(1),
) -> list[str]:
    id_ = query.id(partition)
    names = [keys.meta(id_)]
    names += [keys.segment(id_, f"u:{version + 1}:{attempt}.{one.split(' ')[0]}") for one in slices]
    words = [word for one in slices for word in one.split(" ", 1)]
    args = [run, str(version), parent, attempt, str(number), known, "60000", "120000", *words]
    reply: Any = query.client.eval(script("preview").text, len(names), *names, *args)
    return [word.decode() for word in reply]


def test_preview_is_set_replaced_and_renewed(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    first = query.slice(at, 1, {"UA": 2})
    assert set_preview(query, at, 1, "", first) == ["OK"]
    assert count(reader, "UA") == 2
    second = query.slice(at, 2, {"UA": 3})
    assert set_preview(query, at, 2, f"{ATTEMPT} 1", second, first) == ["OK"]
    # The reply was lost.
    assert set_preview(query, at, 2, f"{ATTEMPT} 1", second, first) == ["OK"]
    assert count(reader, "UA") == 3
    assert query.client.pttl(keys.segment(query.id(at), f"u:2:{ATTEMPT}.1")) > 60_000


def test_call_that_arrives_late_changes_nothing(query: Running, reader: Reader) -> None:
    at = query.place("UA")
    first, second = query.slice(at, 1, {"UA": 2}), query.slice(at, 2, {"UA": 3})
    assert set_preview(query, at, 1, "", first) == ["OK"]
    assert set_preview(query, at, 2, f"{ATTEMPT} 1", second, first) == ["OK"]
    assert set_preview(query, at, 1, "", first) == ["OTHER", f"{ATTEMPT} 2", "1"]
    assert count(reader, "UA") == 3


def test_fenced_or_overtaken_writer_is_refused(query: Running) -> None:
    at = query.place("UA")
    first = query.slice(at, 1, {"UA": 2})
    assert set_preview(query, at, 1, "", first, run="zombie") == ["FENCED", "epoch", "1", RUN]
    assert set_preview(query, at, 1, "", first, parent=OTHER) == ["FENCED", "opened", "1"]
    assert set_preview(query, at, 1, "", first, version=0)[:2] == ["FENCED", "opened"]
    query.delta(at, 2, {}, confirmed=False)
    assert set_preview(query, at, 1, "", first) == ["ENDED"]
    query.client.hset(keys.meta(query.id(at)), "f", "7")
    assert set_preview(query, at, 1, "", first) == ["FORMAT", "7"]
    assert query.client.hget(keys.meta(query.id(at)), "u") is None


def test_slice_that_lost_blocks_is_not_named(query: Running) -> None:
    at = query.place("UA")
    first = query.slice(at, 1, {"UA": 2})
    query.client.delete(keys.segment(query.id(at), f"u:2:{ATTEMPT}.1"))
    assert set_preview(query, at, 1, "", first) == ["INCOMPLETE", f"u:2:{ATTEMPT}.1"]
    assert query.client.hget(keys.meta(query.id(at)), "u") is None


def test_abort_ends_the_previews_of_its_attempt(query: Running) -> None:
    at = query.place("UA")
    first = query.slice(at, 1, {"UA": 2})
    assert set_preview(query, at, 1, "", first) == ["OK"]
    ident = f"d:2:{ATTEMPT}"
    names = [keys.meta(query.id(at)), keys.segment(query.id(at), ident)]
    query.client.eval(script("abort").text, 2, *names, ident, "u")
    assert set_preview(query, at, 1, "", first) == ["OTHER", f"{ATTEMPT} -", "0"]
    # Another attempt of the run knows of the mark, and goes on.
    other = query.slice(at, 1, {"UA": 3}, attempt=OTHER)
    assert set_preview(query, at, 1, f"{ATTEMPT} -", other, attempt=OTHER) == ["OK"]


def test_abort_of_an_attempt_without_previews_leaves_no_mark(query: Running) -> None:
    ident = f"d:2:{ATTEMPT}"
    names = [keys.meta(query.id(0)), keys.segment(query.id(0), ident)]
    query.client.eval(script("abort").text, 2, *names, ident)
    assert query.client.hget(names[0], "u") is None
    # Nor does one of a partition that is gone make it anew.
    query.client.delete(names[0])
    query.client.eval(script("abort").text, 2, *names, ident, "u")
    assert not query.client.exists(names[0])


def test_families_with_a_time_to_live_hide_expired_rows(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url)
    query = Running(client, partitions=1)
    query.family = replace(query.family, ttl=True)
    query.times = {1: 100, 2: 200}
    query.register()
    client.hset(keys.query(query.gen), "publishEvery", "200")
    stored = [query.value(row(1), expires=expires) for expires in (150, 300)]
    query.commit(1, list(zip(map(key, ("UA", "AA")), stored, strict=True)))
    ident = f"u:2:{ATTEMPT}.1"
    writer = SegmentWriter(ident, [query.family], query.buckets)
    writer.add({query.key(key("DL")): query.value(row(9), expires=400)})
    entry = replace(writer.finish(ref=uid(1), live=3), time=200)
    fields: Any = dict(writer.fields)
    client.hset(keys.segment(query.id(0), ident), mapping=fields)
    query.preview(0, f"1 {entry.text}")
    with connect(redis_server.url) as reader:
        assert counts(reader) == {"AA": 1, "DL": 9}
        assert counts(reader, "latest") == {"UA": 1, "AA": 1}
    client.close()
