"""The table of a day, and what a process and a server are counted to use."""

from __future__ import annotations

import os
import threading

import pytest

from tests.faults.day import Day, table
from tests.faults.usage import process_figures, server_figures
from tests.support.capacity import SimulatedTime
from tests.support.redis_server import RedisServer


def day(values: list[float]) -> Day:
    made = Day(batches=8)
    made.samples = [{"server: keys": value, "driver: threads": 40.0} for value in values]
    return made


def test_day_whose_figures_stay_is_good() -> None:
    text, good = table(day([500.0 + number % 3 for number in range(24)]), 20)
    assert good
    assert "Figures of the last 16 hours." in text
    assert text.count("| flat |") == 2


def test_day_with_a_figure_that_grows_is_not_good() -> None:
    text, good = table(day([500.0 + 20 * number for number in range(24)]), 20)
    assert not good
    assert "| server: keys | 660 | 810 | 960 |" in text
    assert text.count("| grows |") == 1


@pytest.mark.parametrize(("hours", "shown"), [(8, "too few"), (9, "grows")])
def test_few_hours_are_not_said_to_be_flat(hours: int, shown: str) -> None:
    text, _ = table(day([500.0 + 100 * number for number in range(hours)]), 20)
    assert f"| {shown} |" in text.splitlines()[4]
    assert ("flat" in text) == (hours == 9)


def test_day_with_a_complaint_or_without_batches_is_not_good() -> None:
    made = day([1.0] * 24)
    made.complaints.append("hour 3: lost")
    assert not table(made, 20)[1]
    assert not table(Day(), 20)[1]


def test_processes_are_counted_and_those_that_are_gone_left_out() -> None:
    found = dict(process_figures("mine", [os.getpid(), 2**22 - 1]))
    assert found["mine: processes"] == 1
    assert found["mine: threads"] >= threading.active_count()
    assert found["mine: resident MiB"] > 10
    assert found["mine: open files"] > 0


def test_time_passes_for_all_keys_but_those_of_the_living(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("{rs:a}:i:0:0:x", "alive", px=60_000)
        client.set("{rs:a}:0:0:m", "ephemeral", px=7_200_000)
        client.set("{rs:a}:0:0:d:1:x", "dropped", px=600_000)
        client.set("{rs:a}:q", "stays")
        SimulatedTime(client).pass_all_ms(3_600_000, but=["*}:i:*"])
        assert sorted(client.keys("*")) == [b"{rs:a}:0:0:m", b"{rs:a}:i:0:0:x", b"{rs:a}:q"]
        assert 3_500_000 < client.pttl("{rs:a}:0:0:m") <= 3_600_000
        figures = dict(server_figures(client))
    assert figures["server: keys"] == 3
    assert figures["server: keys that do not expire"] == 1
    assert figures["server: connections"] == 0
