"""Time that the script `open` returns for the next version (docs/format.md, section 15)."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state import keys
from redis_state.backend.script import script
from redis_state.format.entry import Entry
from redis_state.ids import EMPTY, Pin
from redis_state.protocol.opening import open_args, read_opened
from tests.contract.planting import Planted, uid

PAST, LATER = 1_000_000_000, 4_000_000_000


def entry(parent: str, *, time: int = 0) -> str:
    return Entry(parent, 0, 0, 0, 0, 1, 0, time=time).text


class Opener:
    """One partition, opened by its script."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        self.client: Any = planted.client
        self.id = planted.id(0)

    def version(self, number: int, *, time: int = 0, attempt: str = "", parent: str = "") -> None:
        """Plants an attempt at a version, published last."""
        own = attempt or uid(number)
        above = parent or (uid(number - 1) if number > 1 else "-")
        fields = {f"d:{number}:{own}": entry(above, time=time), "l": str(number), "lu": own}
        self.set(f="1", e="1", w="0", n="2", **fields)

    def set(self, **fields: str) -> None:
        self.client.hset(keys.meta(self.id), mapping=fields)

    def confirm(self, number: int, *, run: str = "run") -> None:
        self.set(o=str(number), ou=uid(number) if number else "-", r=run)

    def reply(
        self, version: int | None, *, run: str = "", cached: tuple[Pin, ...] = ()
    ) -> list[str]:
        args = open_args(run, version, cached=cached, with_time=True)
        found = self.client.execute_command(*script("open").by_text([keys.meta(self.id)], *args))
        return [word.decode() for word in found]

    def time(self, version: int | None, *, run: str = "", cached: tuple[Pin, ...] = ()) -> int:
        answer = self.reply(version, run=run, cached=cached)
        found = read_opened(self.id, answer, version=version, cached=cached, with_time=True)
        return found.time_s

    def call(self, name: str, *args: str) -> list[str]:
        found = self.client.execute_command(*script(name).by_text([keys.meta(self.id)], *args))
        return [word.decode() for word in found]

    def server_s(self) -> int:
        return int(self.client.time()[0])


@pytest.fixture
def opener(planted: Planted) -> Opener:
    return Opener(planted)


def test_first_version_gets_the_time_of_the_server(opener: Opener) -> None:
    before = opener.server_s()
    for version in (0, None):
        assert before <= opener.time(version) <= opener.server_s()
    opener.set(f="1", o="0", ou="-", l="0", lu="-", w="0")
    assert before <= opener.time(0, run="run") <= opener.server_s()
    assert opener.reply(0)[8:] == opener.reply(0)[8:9]


@pytest.mark.parametrize("time", [PAST, LATER])
def test_batch_that_is_run_again_gets_its_first_time(opener: Opener, time: int) -> None:
    opener.version(1, time=7)
    opener.confirm(1)
    before = opener.server_s()
    assert before <= opener.time(1, run="run") <= opener.server_s()
    opener.version(2, time=time)
    for run in ("", "run", "another"):
        assert opener.time(1, run=run) == time
    assert opener.time(1, cached=(Pin(1, uid(1)),)) == time
    opener.version(3, time=time + 9)
    assert (opener.time(1), opener.time(2)) == (time, time + 9)


def test_first_version_that_is_run_again_gets_its_first_time(opener: Opener) -> None:
    opener.version(1, time=PAST)
    opener.set(o="0", ou="-", r="run")
    assert opener.time(0) == PAST


def test_attempt_on_top_of_another_attempt_lends_no_time(opener: Opener) -> None:
    opener.version(1, time=7)
    opener.confirm(1)
    opener.version(1, time=8, attempt="other")
    opener.version(2, time=PAST, attempt="x", parent="other")
    before = opener.server_s()
    assert opener.time(1, run="run") >= before
    opener.version(2, time=LATER, attempt="y")
    assert opener.time(1, run="run") == LATER


def test_attempt_without_a_time_lends_none(opener: Opener) -> None:
    opener.version(1)
    opener.confirm(1)
    opener.version(2)
    before = opener.server_s()
    assert before <= opener.time(1, run="run") <= opener.server_s()


def test_last_contender_lends_its_time_where_the_holder_has_no_attempt(opener: Opener) -> None:
    opener.version(1, time=7)
    opener.confirm(1)
    opener.version(2, time=PAST, attempt="theirs")
    opener.set(l="1", lu=uid(1), k="rival:theirs")
    assert opener.time(1, run="run") == PAST


@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize("format_", ["1", "2"])
def test_time_outlives_the_acquire_of_another_run(
    opener: Opener, has_log: bool, format_: str
) -> None:
    opener.version(1, time=7)
    opener.confirm(1)
    opener.version(2, time=PAST)
    for epoch in (5, 6):
        args = [f"run-{epoch}", str(epoch), "1", "1", uid(1), "2", "1000", format_, "0"]
        found = opener.call("acquire", *args, "1 run" if has_log else "-")
        if found[0] == "UNSURE":
            found = opener.call("acquire", *args, f"{found[1]} {found[2]}")
        assert found[0] == "OK"
        for run in (f"run-{epoch}", ""):
            assert opener.time(1, run=run) == PAST
    opener.set(l="1", lu=uid(1), o="0", ou="-")
    opener.time(1, run="run-6")
    assert opener.client.hget(keys.meta(opener.id), "tv") is None


def test_store_loaded_empty_gets_a_time_beside_the_refusal(opener: Opener) -> None:
    assert opener.reply(4)[:3] == ["STATE_LOST", "0", "0"]
    assert int(opener.reply(4)[3]) <= opener.server_s()
    opener.version(4, time=PAST, parent="-")
    opener.set(o="3", ou="-", r="run")
    assert opener.reply(3) == ["STATE_LOST", "4", "0", str(PAST)]
    opener.set(w="2")
    assert opener.reply(1)[:3] == ["VERSION_EXPIRED", "2", "4"]
    assert int(opener.reply(1)[3]) > PAST


def test_open_without_the_argument_has_no_time(opener: Opener) -> None:
    for planted in (False, True):
        if planted:
            opener.version(1, time=7)
            opener.confirm(1)
        args = open_args("", None)
        call = script("open").by_text([keys.meta(opener.id)], *args)
        found = opener.client.execute_command(*call)
        assert read_opened(opener.id, [word.decode() for word in found], version=None).time_s == 0
        assert len(found) == (11 if planted else 1)
    assert read_opened(opener.id, ["EMPTY"], version=None).pin == EMPTY
