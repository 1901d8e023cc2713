"""The parts of the dashboard that need no server: numbers, maps, sessions, who is answered."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from redis_state.dashboard import words
from redis_state.dashboard.access import SESSION_S, SESSIONS_MAX, Guard, Sessions
from redis_state.dashboard.plots import CELLS_MAX, LEVELS, MAP_COLUMNS, heat_map, line
from redis_state.dashboard.samples import SAMPLES_MAX, Sample, Series, mean_ms, versions_a_minute
from redis_state.dashboard.settings import Settings, checked
from redis_state.errors import ConfigError
from redis_state.reader import PartitionStatus
from tests.support.manual_clock import ManualClock

TOKEN = "0123456789abcdef0123"


def settings(tmp_path: Path, **given: Any) -> Settings:
    (tmp_path / "token").write_text(f" {TOKEN}\n")
    values: dict[str, Any] = {"address": "127.0.0.1", "port": 0, "names": (), "token_file": None}
    values |= {"cert_file": None, "key_file": None, "interval_s": 10.0}
    return checked(**{**values, **given})


def test_numbers_are_abbreviated_to_fit_a_cell() -> None:
    for number in (0, 7, 999, 1000, 9949, 9951, 99_999, 999_499, 999_500, 10**9, 10**14):
        assert len(words.short(number)) <= 4, number
    assert words.short(1234) == "1.2k"
    assert words.short(999_500) == "1.0M"


def test_moment_formats_a_time() -> None:
    assert words.moment(1) == "1970-01-01 00:00:00 UTC"
    assert words.moment(0) == words.moment(10**30) == "-"


def test_a_series_keeps_the_newest_samples() -> None:
    series = Series()
    assert list(series.samples()) == []
    for number in range(SAMPLES_MAX + 3):
        series.add(Sample(number, 2 * number, 3, 4, 5))
    found = list(series.samples())
    assert len(found) == SAMPLES_MAX
    assert found[0] == Sample(3, 6, 3, 4, 5)
    assert found[-1].rows == 2 * (SAMPLES_MAX + 2)


def test_rate_covers_the_last_minute() -> None:
    def at(second: int, version: int) -> Sample:
        return Sample(second * 1000, 0, 0, version, 0)

    assert versions_a_minute([]) == []
    assert versions_a_minute([at(0, 5)]) == [None]
    steady = [at(10 * number, number) for number in range(20)]
    assert versions_a_minute(steady)[1:] == [pytest.approx(6.0)] * 19
    stopped = [*steady, *(at(200 + 10 * number, 19) for number in range(8))]
    assert versions_a_minute(stopped)[-1] == 0
    assert versions_a_minute([at(0, 9), at(10, 3), at(20, 4)]) == [None, None, None]


def test_mean_covers_two_minutes() -> None:
    def at(second: int, commits: int, commit_ms: int) -> Sample:
        return Sample(second * 1000, 0, 0, 0, 0, commits=commits, commit_ms=commit_ms)

    samples = [at(0, 10, 100), at(20, 10, 100), at(40, 14, 120), at(150, 15, 170), at(300, 15, 170)]
    means = mean_ms(samples, "commits", "commit_ms")
    assert means == [None, None, pytest.approx(5.0), pytest.approx(50.0), None]
    # Looks that are further apart than that: since the one before.
    apart = [at(400 * number, 10 * number, 50 * number) for number in range(4)]
    assert mean_ms(apart, "commits", "commit_ms") == [None, *[pytest.approx(5.0)] * 3]
    assert (words.took(None), words.took(1.26), words.took(2345.6)) == ("-", "1.3 ms", "2.3 s")


def partitions(*rows: int) -> list[PartitionStatus]:
    return [PartitionStatus(0, "default", at, rows=number) for at, number in enumerate(rows)]


def test_heat_map_shows_the_largest_partition() -> None:
    found = heat_map(partitions(0, 1, 50, 100), of="rows")
    assert [[cell.level for cell in row] for row in found.rows] == [[0, 1, LEVELS // 2, LEVELS]]
    assert (found.largest, found.left_out) == (100, 0)
    assert found.skew == pytest.approx(400 / 151)
    empty = heat_map(partitions(0, 0), of="rows")
    assert (empty.largest, empty.skew) == (0, None)
    assert heat_map([], of="rows").rows == ()


def test_heat_map_size_is_bounded() -> None:
    found = heat_map(partitions(*[1] * (CELLS_MAX + 5)), of="rows")
    assert found.left_out == 5
    assert {len(row) for row in found.rows} == {MAP_COLUMNS}


def test_chart_contains_only_shapes() -> None:
    drawn = line([(0, 5), (10, None), (20, 6), (30, 7)], label='<"Rows">')
    assert set(re.findall(r"<(\w+)", drawn)) == {"svg", "path"}
    assert 'aria-label="&lt;&quot;Rows&quot;&gt;"' in drawn
    assert re.findall(r"https?://[^\"]+", drawn) == ["http://www.w3.org/2000/svg"]
    assert "nan" not in drawn
    flat = line([(0, 0), (10, 0)], label="nothing")
    assert flat.count("<path") == 2


def test_only_known_host_names_are_answered(tmp_path: Path) -> None:
    here = settings(tmp_path, names=("State.Example.org",))
    for name in ("localhost", "127.0.0.1", "::1", "state.example.org"):
        assert here.answers_to(name)
    for name in ("", "10.0.0.1", "example.org", "localhost.example.org"):
        assert not here.answers_to(name)
    everywhere = settings(tmp_path, address="0.0.0.0", token_file=str(tmp_path / "token"))
    assert everywhere.answers_to("10.0.0.1")
    assert not everywhere.answers_to("example.org")
    assert TOKEN not in repr(everywhere)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "state.example.org", ""])
def test_foreign_address_needs_a_token(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="there is no token"):
        settings(tmp_path, address=address)
    assert settings(tmp_path, address=address, token_file=str(tmp_path / "token")).token == TOKEN


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_address_needs_no_token(tmp_path: Path, address: str) -> None:
    assert settings(tmp_path, address=address).loopback


def test_sessions_expire() -> None:
    clock = ManualClock()
    sessions = Sessions(TOKEN, clock=clock)
    assert sessions.open(TOKEN[:-1]) is None
    first = sessions.open(TOKEN)
    assert first is not None
    assert sessions.knows(first)
    assert not sessions.knows("")
    clock.sleep_s(SESSION_S)
    assert not sessions.knows(first)


def test_sessions_are_bounded() -> None:
    sessions = Sessions(TOKEN)
    first = sessions.open(TOKEN)
    assert first is not None
    for _ in range(SESSIONS_MAX):
        sessions.open(TOKEN)
    assert not sessions.knows(first)


def test_session_without_a_token_cannot_be_opened() -> None:
    sessions = Sessions(None)
    assert not sessions.needed
    assert sessions.open("") is None


def test_failed_request_does_not_quote_the_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "a key that somebody typed"

    async def broken(*_: object) -> None:
        raise ValueError(key)

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    guard = Guard(broken, settings=settings(tmp_path), sessions=Sessions(None))
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    with caplog.at_level(logging.ERROR):
        asyncio.run(guard(scope, receive, send))
    assert sent[0]["status"] == 500
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]
    assert "ValueError" in caplog.text
    assert key not in caplog.text + str(sent)
