"""Scripts of files, one step at a time, on a manifest that is planted (docs/format.md, 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redis_state.backend.script import script
from tests.support.redis_server import RedisServer

GEN = "a" * 32
P = f"{{rs:{GEN}:0:0:37a8eec1ce19687d}}"
META, FILES = f"{P}:m", f"{P}:f"
A, B, C, D = (f"0-0-37a8eec1ce19687d/1-3-{letter * 32}.seg" for letter in "abcd")
DAY_MS = 86_400_000
TEN_MIN_MS = 600_000

Step = Callable[..., list[str]]


def uid(version: int) -> str:
    return f"u{version}"


def delta(version: int) -> str:
    return f"d:{version}:{uid(version)}"


def entry(ref: str) -> str:
    return f"{ref} 5 9 2 100 1 7 h"


SNAPSHOT = f"s:2:{uid(2)}"


class Planted:
    """Four versions, of which three are confirmed, and a snapshot of the second."""

    def __init__(self, client: Any) -> None:
        self.raw = client
        head = {"f": "1", "e": "1", "r": "run", "o": "3", "ou": uid(3), "l": "4", "lu": uid(4)}
        self.raw.hset(META, mapping={**head, "n": "100", "w": "0", "c": "2"})
        for version in range(1, 5):
            parent = uid(version - 1) if version > 1 else "-"
            self.raw.hset(META, delta(version), entry(parent))
            self._key(f"{P}:{delta(version)}")
        self.raw.hset(META, SNAPSHOT, entry("w2"))
        self._key(f"{P}:s:2:w2")

    def _key(self, name: str) -> None:
        self.raw.hset(name, mapping={"0": "block", "h": "header"})

    def step(self, name: str, *args: object, keys: tuple[str, ...] = ()) -> list[str]:
        names = [META, FILES, *keys]
        found = self.raw.eval(script(name).text, len(names), *names, *map(str, args))
        return list(found)

    def one_key(self, name: str, *args: object) -> list[str]:
        return list(self.raw.eval(script(name).text, 1, META, *map(str, args)))

    def retain(self, *fields: str) -> list[str]:
        floor = self.raw.hget(META, "w")
        head = (TEN_MIN_MS, 1, 3, uid(3), floor, floor, "")
        return self.one_key("retain", *head, *fields)

    def row(self, file: str) -> list[str] | None:
        found = self.raw.hget(FILES, file)
        return None if found is None else [found.split()[0], found.split()[2]]

    def place(self, file: str, *fields: str) -> list[str]:
        triples: list[str] = []
        for at, field in enumerate(fields):
            value = self.raw.hget(META, field) or self.raw.hget(META, f"z:{field}").split(" ", 1)[1]
            triples += [field, value, f"f {file} {at} 100 50"]
        return self.step("place", file, 900, 60_000, *triples)

    def meta(self, field: str) -> str | None:
        found: str | None = self.raw.hget(META, field)
        return found

    def left_ms(self, ident: str) -> int:
        return int(self.raw.pttl(f"{P}:{ident}"))


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    import redis

    return Planted(redis.Redis.from_url(redis_server.url, decode_responses=True))


def test_name_is_announced_once(planted: Planted) -> None:
    assert planted.step("announce", A) == ["OK"]
    assert planted.step("announce", A) == ["TAKEN"]
    assert planted.row(A) == ["n", "0"]
    assert planted.meta("f") == "1"


def test_no_file_is_announced_where_state_expires_or_is_unknown(planted: Planted) -> None:
    planted.raw.pexpire(META, 60_000)
    assert planted.step("announce", A) == ["EXPIRES"]
    planted.raw.persist(META)
    planted.raw.hset(META, "f", "9")
    assert planted.step("announce", A) == ["FORMAT", "9"]
    planted.raw.delete(META)
    assert planted.step("announce", A) == ["EMPTY"]


def test_place_needs_an_announced_file(planted: Planted) -> None:
    assert planted.place(A, delta(1)) == ["GONE"]
    assert planted.meta(f"a:{delta(1)}") is None
    assert planted.left_ms(delta(1)) == -1


def test_place_takes_confirmed_segments_alone_and_may_be_repeated(planted: Planted) -> None:
    planted.step("announce", A)
    for _ in range(2):
        assert planted.place(A, delta(1), delta(2), delta(4)) == ["OK", "2"]
        assert planted.row(A) == ["u", "2"]
    assert planted.meta("f") == "2"
    assert planted.meta(f"a:{delta(1)}") == f"f {A} 0 100 50"
    assert 0 < planted.left_ms(delta(1)) <= 60_000
    assert planted.left_ms(delta(4)) == -1


def test_place_refuses_a_changed_entry_and_a_placed_segment(planted: Planted) -> None:
    planted.step("announce", A)
    planted.step("announce", B)
    other = planted.step("place", A, 900, 60_000, delta(1), entry("x"), f"f {A} 0 100 50")
    assert other == ["GONE"]
    planted.place(A, delta(1))
    assert planted.place(B, delta(1)) == ["GONE"]
    assert planted.meta(f"a:{delta(1)}") == f"f {A} 0 100 50"
    assert planted.row(B) == ["n", "0"]


def test_last_segment_condemns_its_file(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(1), delta(2))
    assert planted.retain(delta(1)) == ["OK", "1", "100"]
    assert planted.row(A) == ["u", "1"]
    planted.retain(delta(2))
    assert planted.row(A) == ["d", "0"]
    assert planted.meta(f"a:{delta(2)}") is None
    assert planted.place(A, delta(3)) == ["GONE"]
    assert planted.meta("f") == "1"


def test_pinned_segment_keeps_its_place_when_it_is_dropped(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(3))
    assert planted.one_key("pin", "G", "fork", 3, "", 0)[0] == "OK"
    planted.retain(delta(3))
    assert planted.meta(f"z:{delta(3)}") == f"{delta(3)} {entry(uid(2))}"
    assert planted.row(A) == ["u", "1"]
    assert planted.left_ms(delta(3)) <= 60_000
    held = planted.one_key("held", "G")
    assert held[7:10] == [delta(3), entry(uid(2)), f"f {A} 0 100 50"]
    planted.one_key("unpin", "G", "")
    planted.retain(f"z:{delta(3)}")
    assert planted.row(A) == ["d", "0"]
    assert planted.meta(f"a:{delta(3)}") is None


def test_segment_that_was_set_aside_is_placed(planted: Planted) -> None:
    planted.one_key("pin", "G", "fork", 3, "", 0)
    planted.retain(delta(3))
    assert planted.left_ms(delta(3)) > DAY_MS
    planted.step("announce", B)
    assert planted.place(B, delta(3)) == ["OK", "1"]
    assert planted.left_ms(delta(3)) <= 60_000


def test_sweep_condemns_unknown_and_old_announced_files_alone(planted: Planted) -> None:
    planted.step("announce", A)
    planted.step("announce", B)
    planted.place(B, delta(1))
    assert planted.step("condemn", A, DAY_MS) == ["YOUNG"]
    assert planted.step("condemn", A, 0) == ["OK"]
    assert planted.step("condemn", B, 0) == ["USED"]
    assert planted.step("condemn", C, DAY_MS) == ["OK"]
    assert planted.step("condemn", C, DAY_MS) == ["CONDEMNED"]
    assert planted.place(A, delta(2)) == ["GONE"]
    assert planted.step("announce", C) == ["TAKEN"]


def test_only_a_condemned_file_is_discarded(planted: Planted) -> None:
    planted.step("announce", A)
    assert planted.step("discard", A) == ["KEPT"]
    assert planted.step("discard", D) == ["KEPT"]
    planted.step("condemn", A, 0)
    assert planted.step("discard", A) == ["OK"]
    assert planted.row(A) is None


def test_segment_comes_back_once_all_blocks_are_there(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(1), delta(2))
    planted.raw.delete(f"{P}:{delta(1)}")
    key, place = f"{P}:{delta(1)}", f"f {A} 0 100 50"
    args = (delta(1), entry("-"), place)

    def stage(*words: str) -> list[str]:
        return list(planted.raw.eval(script("stage").text, 2, META, key, delta(1), DAY_MS, *words))

    assert stage("0", "block") == ["PUBLISHED"]
    assert not planted.raw.exists(key)
    assert stage("0", "block", "b") == ["OK"]
    assert planted.step("unplace", *args, keys=(key,)) == ["INCOMPLETE", "1"]
    assert stage("h", "header", "b") == ["OK"]
    assert planted.step("unplace", *args[:2], f"f {B} 0 100 50", keys=(key,)) == ["GONE"]
    assert planted.step("unplace", *args, keys=(key,)) == ["OK"]
    assert planted.step("unplace", *args, keys=(key,)) == ["GONE"]
    assert planted.left_ms(delta(1)) == -1
    assert planted.row(A) == ["u", "1"]
    assert planted.meta(f"a:{delta(1)}") is None


def test_late_steps_leave_a_placed_segment_without_a_lasting_key(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(1), SNAPSHOT, delta(3))
    for ident in (delta(3), "s:2:w2"):
        assert planted.left_ms(ident) <= 60_000
    key = f"{P}:{delta(3)}"
    again = ("run", 1, 2, uid(2), uid(3), 2, entry(uid(2)), TEN_MIN_MS, 2, 0)
    found = planted.raw.eval(script("publish").text, 2, META, key, *map(str, again))
    assert found == ["ALREADY"]
    snapshot = ("2", uid(2), "w2", "2", entry("w2"), "0")
    found = planted.raw.eval(
        script("snapshot").text, 3, META, f"{P}:s:2:w2", f"{P}:n:s:2:w2", *snapshot
    )
    assert found == ["ALREADY"]
    found = planted.raw.eval(script("mend").text, 2, META, key, delta(3), entry(uid(2)))
    assert found == ["GONE"]
    planted.one_key("renew", "0")
    for ident in (delta(3), "s:2:w2", delta(1)):
        assert 0 < planted.left_ms(ident) <= 60_000
    assert planted.left_ms(delta(4)) == -1
    planted.raw.persist(key)
    assert planted.raw.eval(script("orphan").text, 2, META, key, delta(3), "60000") == ["OK"]


def test_placed_snapshot_is_no_foreign_one(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, SNAPSHOT)
    planted.raw.hset(f"{P}:s:2:w9", mapping={"0": "block", "h": "header"})
    other = ("2", uid(2), "w9", "2", entry("w9"), "0")
    found = planted.raw.eval(
        script("snapshot").text, 3, META, f"{P}:s:2:w9", f"{P}:n:s:2:w9", *other
    )
    assert found == ["EXISTS"]
    assert planted.row(A) == ["u", "1"]
    assert planted.one_key("detach", 0, "") == ["NONE"]


def test_rewind_condemns_files_of_what_it_drops(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(2), delta(3))
    taken = planted.one_key("acquire", "run2", 2, 1, 1, uid(1), 100, TEN_MIN_MS, 1, 0, "3 run")
    assert taken == ["OK", "4"]
    assert planted.row(A) == ["d", "0"]


def test_purge_and_recall_take_the_files_along(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(1))
    assert planted.one_key("purge", DAY_MS, GEN, "0")[0] == "OK"
    assert 0 < planted.raw.pttl(FILES) <= DAY_MS
    assert planted.step("place", A, 900, 60_000, delta(2), entry(uid(1)), f"f {A} 0 100 50")[0] in (
        "FORMAT",
    )
    assert planted.step("condemn", A, 0)[0] == "FORMAT"
    planted.raw.delete(f"{P}:{delta(1)}")
    assert planted.one_key("recall") == ["OK", "4", "0"]
    assert planted.raw.pttl(FILES) == -1
    assert planted.row(A) == ["u", "1"]


def test_open_lists_places(planted: Planted) -> None:
    planted.step("announce", A)
    planted.place(A, delta(1), SNAPSHOT)
    found = planted.one_key("open", "", 2, "")
    assert found[8:] == [SNAPSHOT, entry("w2"), f"f {A} 1 100 50"]
