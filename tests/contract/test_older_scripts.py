"""Scripts of release 0.1.0 beside pins and forks: refused by the format number, or without effect.

The last tests pin what that release does not refuse (docs/format.md, section 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from redis_state import keys
from redis_state.backend.script import script
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import PartitionId
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.pins import FORK, fork_partitions, pin_all
from tests.contract.test_pins import DAY_MS, FORKED, Parent
from tests.support.redis_server import RedisServer
from tests.support.releases import FOLDER

SCRIPTS = FOLDER / "0.1.0" / "scripts"
RUN, LATER = "r" * 32, "99"
ENTRY = "- 1 1 1 11 1 1 -"
YEAR_MS = 365 * DAY_MS
PLACES = ("parent", "fork")


@dataclass
class Scene:
    """A store with pinned segments, of which none is in the manifest any more, and its fork."""

    parent: Parent
    raw: Any
    ids: dict[str, PartitionId] = field(default_factory=dict)

    def begin(self) -> None:
        self.parent.commit(3)
        pinned = pin_all(self.parent.client, [self.parent.id], FORKED, 3, kind=FORK)
        fork_partitions(self.parent.client, FORKED, pinned, ttl_ms=DAY_MS)
        for _ in range(3):
            self.parent.commit(4)
            self.parent.maintain()
        self.ids = {"parent": self.parent.id, "fork": self.parent.id.of_gen(FORKED)}
        self.raw.persist(keys.meta(self.ids["fork"]))
        assert self.aside()

    def old(self, name: str, place: str, *args: str, ident: str = "") -> list[str]:
        """Runs a script of the release; returns its reply."""
        id_ = self.ids[place]
        names = [keys.meta(id_), keys.segment(id_, ident)] if ident else [keys.meta(id_)]
        reply = self.raw.eval(text_of(name), len(names), *names, *args)
        return [word.decode() for word in reply]

    def manifest(self, place: str) -> dict[str, str]:
        found = self.raw.hgetall(keys.meta(self.ids[place]))
        return {name.decode(): value.decode() for name, value in found.items()}

    def aside(self) -> list[Segment]:
        named = self.manifest("parent").items()
        return [parse_segment(*value.split(" ", 1)) for name, value in named if name[:2] == "z:"]

    def named(self, place: str) -> Segment:
        """The newest delta that a manifest names."""
        named = self.manifest(place).items()
        deltas = [parse_segment(*one) for one in named if one[0][:2] == "d:"]
        return max(deltas, key=lambda one: one.version)

    def all(self) -> dict[bytes, tuple[dict[bytes, bytes], str]]:
        """Every key of the two partitions, with its content and how long it lives."""
        bases = [keys.meta(id_)[:-1] for id_ in self.ids.values()]
        found = [key for base in bases for key in self.raw.scan_iter(f"{base}*", count=1000)]
        return {key: (self.raw.hgetall(key), lives(self.raw.pttl(key))) for key in found}

    def left_ms(self, segment: Segment) -> int:
        left: int = self.raw.pttl(keys.segment(self.ids["parent"], segment.ident))
        return left

    def read_fork(self) -> int:
        """Reads all segments of the fork; returns their number."""
        partition = PartitionClient(
            self.parent.client, self.ids["fork"], versions_to_retain=2, where="fork"
        )
        return len(partition.fetch_whole(partition.open("", 3).segments))


def lives(left_ms: int) -> str:
    if left_ms < 0:
        return "for ever"
    return "for years" if left_ms > YEAR_MS else "for a day" if left_ms > 3_600_000 else "minutes"


def text_of(name: str) -> str:
    own = (SCRIPTS / f"{name}.lua").read_text()
    first = own.split("\n", 1)[0]
    return (SCRIPTS / "lineage.lua").read_text() + own if first == "--#include lineage" else own


@pytest.fixture
def scene(redis_server: RedisServer) -> Iterator[Scene]:
    parent = Parent(redis_server.url)
    made = Scene(parent, redis.Redis.from_url(redis_server.url))
    made.begin()
    yield made
    made.raw.close()
    parent.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("run", ["", RUN])
@pytest.mark.parametrize("version", ["opened", "3"])
def test_open_is_refused(scene: Scene, place: str, run: str, version: str) -> None:
    before = scene.all()
    assert scene.old("open", place, run, version, "") == ["FORMAT", "2"]
    assert scene.all() == before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("version", ["0", "2", "3"])
def test_acquire_is_refused(scene: Scene, place: str, version: str) -> None:
    before = scene.all()
    args = [RUN, LATER, "1", version, "-", "2", "600000", "1", "0", "-"]
    assert scene.old("acquire", place, *args) == ["FORMAT", "2"]
    assert scene.all() == before


@pytest.mark.parametrize("place", PLACES)
def test_publish_is_refused_and_leaves_what_was_published(scene: Scene, place: str) -> None:
    before = scene.all()
    at = scene.manifest(place)
    for run, epoch in ((at["r"], at["e"]), (RUN, LATER)):
        fresh = f"d:{int(at['o']) + 1}:{'a' * 32}"
        assert scene.old("stage", place, fresh, str(DAY_MS), "0", "block", ident=fresh) == ["OK"]
        args = [run, epoch, at["o"], at["ou"], "a" * 32, "1", ENTRY, "600000", "1", "0"]
        assert scene.old("publish", place, *args, ident=fresh) == ["FORMAT", "2"]
        assert scene.all() == before
        known = scene.named(place)
        args[2:7] = [str(known.version - 1), known.entry.ref, known.uid, "1", known.entry.text]
        assert scene.old("publish", place, *args, ident=known.ident) == ["FORMAT", "2"]
        assert scene.all() == before


@pytest.mark.parametrize("place", PLACES)
def test_snapshot_is_refused(scene: Scene, place: str) -> None:
    at = scene.manifest(place)
    before = scene.all()
    ident = f"s:{at['o']}:{'a' * 32}"
    args = [at["o"], at["ou"], "a" * 32, "0", ENTRY, "0"]
    assert scene.old("snapshot", place, *args, ident=ident) == ["FORMAT", "2"]
    assert scene.all() == before


@pytest.mark.parametrize("place", PLACES)
def test_retention_is_refused(scene: Scene, place: str) -> None:
    at = scene.manifest(place)
    before = scene.all()
    plan = ["600000", at["e"], at["o"], at["ou"], at["w"], at["o"], ""]
    fields = [name for name in at if name[:2] in ("d:", "s:")]
    assert scene.old("retain", place, *plan, *fields) == ["FORMAT", "2"]
    assert scene.all() == before


@pytest.mark.parametrize("place", PLACES)
def test_steps_that_do_not_read_the_number_change_nothing(scene: Scene, place: str) -> None:
    before = scene.all()
    known = scene.named(place)
    staged = [known.field, str(DAY_MS), "0", "other"]
    assert scene.old("stage", place, *staged, ident=known.ident) == ["PUBLISHED"]
    assert scene.old("abort", place, known.field, ident=known.ident) == ["PUBLISHED"]
    assert scene.old("renew", place, "0")[0] == "OK"
    assert scene.old("mend", place, known.field, known.entry.text, ident=known.ident) == ["OK"]
    restored = ["3", "u" * 32, "0", "2", "1", known.field, known.entry.text]
    assert scene.old("restore", place, *restored) == ["PRESENT"]
    assert scene.old("recall", place) == ["KEPT"]
    for segment in scene.aside():
        # Ten years are an expiry: to that release the key looks like one that was dropped.
        orphan = [segment.ident, str(DAY_MS)]
        assert scene.old("orphan", "parent", *orphan, ident=segment.ident) == ["EXPIRES"]
        gone = [segment.field, segment.entry.text]
        assert scene.old("mend", "parent", *gone, ident=segment.ident) == ["GONE"]
    assert scene.all() == before
    assert scene.read_fork() > 0


def test_format_1_comes_back_with_the_last_pin(scene: Scene) -> None:
    client = scene.parent.client
    meta = keys.meta(scene.ids["parent"])
    assert client.script("x", script("unpin"), [meta], [FORKED, ""])[0] == "OK"
    scene.parent.partition().retain()
    assert scene.old("open", "parent", "", "opened", "")[0] == "OK"


def test_late_step_of_the_release_drops_what_was_set_aside(scene: Scene) -> None:
    """Known: only a step sent before its segment was published, pinned and dropped can do this."""
    one = scene.aside()[0]
    staged = [one.field, str(DAY_MS)]
    assert scene.left_ms(one) > YEAR_MS
    assert scene.old("stage", "parent", *staged, ident=one.ident) == ["OK"]
    assert scene.left_ms(one) <= DAY_MS
    assert scene.old("abort", "parent", one.field, ident=one.ident) == ["OK"]
    assert scene.left_ms(one) == -2
    other = scene.aside()[1]
    args = [RUN, LATER, str(other.version - 1), "-", other.uid, "1", ENTRY, "600000", "1", "0"]
    assert scene.old("publish", "parent", *args, ident=other.ident) == ["FORMAT", "2"]
    assert scene.left_ms(other) == -2


def test_purge_of_the_release_asks_for_no_pin(scene: Scene) -> None:
    """Known: it purges what forks read, as far as the manifest names it."""
    pin_all(scene.parent.client, [scene.ids["parent"]], "keep.now", scene.parent.at, kind="keep")
    gen = scene.ids["parent"].store.gen
    assert scene.old("purge", "parent", "1000000", gen)[0] == "OK"
    assert lives(scene.left_ms(scene.named("parent"))) == "minutes"
    # What was set aside is not among that, so this fork goes on.
    assert all(scene.left_ms(one) > YEAR_MS for one in scene.aside())
    assert scene.read_fork() > 0
    assert scene.parent.client.script("x", script("recall"), [keys.meta(scene.ids["parent"])], [])


def test_recall_of_the_release_leaves_what_was_set_aside_expiring(scene: Scene) -> None:
    """Known: recall a checkpoint with pins by the release that purged it."""
    parent = scene.ids["parent"]
    args = [str(DAY_MS), parent.store.gen, "1"]
    purged = scene.parent.client.script("x", script("purge"), [keys.meta(parent)], args)
    assert purged[0] == "OK"
    assert scene.old("recall", "parent")[0] == "OK"
    assert all(scene.left_ms(one) <= DAY_MS for one in scene.aside())
    assert scene.left_ms(scene.named("parent")) == -1
