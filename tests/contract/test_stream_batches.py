"""Tasks of a streaming query join its batches: which tasks may join, when, and which are late."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.batches import streams
from redis_state.batches.streams import StreamPlan, TaskPlace
from redis_state.config import Config
from redis_state.errors import ConflictError, RedisStateError, StateError, UsageError
from redis_state.protocol.registry import parse_operators
from tests.contract.stream_support import DELAY_MS, QUERY, TENANT, Driver, call, frame_of
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="module")
def config(shared_redis_server: RedisServer) -> Config:
    return options.parse({"url": shared_redis_server.url})


@pytest.fixture(scope="module")
def client(config: Config) -> Iterator[Client]:
    made = Client(config)
    yield made
    made.close()


@pytest.fixture
def driver(client: Client, config: Config) -> Driver:
    return Driver(client, config)


def test_batches_follow_one_another_and_the_newest_may_be_run_again(driver: Driver) -> None:
    plan = driver.plan()
    driver.task(plan, "r1", 0).run()
    driver.task(plan, "r1", 1).run()
    for batch, found in ((0, "newest batch is 1, and only that batch can be run again"),
                         (3, "newest batch is 1, so the next one is 2")):  # fmt: skip
        with pytest.raises(UsageError, match=found):
            driver.task(plan, "r1", batch).join()
    again = driver.task(plan, "r2", 1, text="again").run()
    assert again.read == b"r1:0 "
    assert driver.task(plan, "r2", 2).run().read == b"r1:0 again "
    again = driver.task(driver.plan(), "r3", 2, text="once more").run()
    assert again.read == b"r1:0 again "


def test_changed_fixed_setting_is_refused_by_name(driver: Driver) -> None:
    plan = driver.plan()
    driver.task(plan, "r1", 0).run()
    plan = driver.plan()
    for wrong, found in (
        ({"partitions": 2}, "the store has 1 partitions, not 2"),
        ({"layout": '"key other"'}, 'the store was made with "key k", not with "key other"'),
        ({"first": 1}, "the store began with batch 0, not 1"),
    ):
        with pytest.raises(UsageError, match=found):
            driver.task(replace(plan, **wrong), "r2", 1).join()
    with pytest.raises(UsageError, match=f"the store belongs to the query {QUERY}, which"):
        driver.task(plan, "r2", 1, query="another").join()
    # None of them took the store from anybody.
    driver.task(plan, "r2", 1).run()


def test_a_store_may_begin_with_a_later_batch(client: Client, config: Config) -> None:
    driver = Driver(client, config, first=7)
    plan = driver.plan()
    for batch in (0, 6, 8):
        with pytest.raises(StateError, match="Redis knows no store of this name"):
            driver.task(plan, "r1", batch).join()
    task = driver.task(plan, "r1", 7).run()
    assert task.joined is not None
    assert task.joined.version == 0


def test_rerun_batch_keeps_its_time_and_watermark(client: Client, config: Config) -> None:
    """The watermark comes from all partitions of the batch before, and it never falls."""
    driver = Driver(client, config, partitions=2)
    plan = driver.plan()
    wanted = 0
    for batch, times in enumerate([(100, 30), (20, 25), (0, 500), (0, 0)]):
        first = None
        for run in ("a", "b", "b", "c"):
            for partition, newest in enumerate(times):
                task = driver.task(
                    plan, f"{batch}{run}", batch, partition=partition, newest_ms=newest
                ).run()
                assert task.joined is not None
                assert task.joined.watermark_ms == wanted
                first = first or task.joined.began_ms
                assert task.joined.began_ms == first
                assert task.joined.version == batch
        wanted = max(wanted, max(times) - DELAY_MS)


def test_incomplete_batch_is_found_by_the_next_one(client: Client, config: Config) -> None:
    driver = Driver(client, config, partitions=3)
    plan = driver.plan()
    driver.task(plan, "r1", 0, partition=1).run()
    with pytest.raises(StateError, match="partition 0, 2 does not hold version 1"):
        driver.task(plan, "r1", 1, partition=1).join()
    # The batch itself may still be run to its end.
    for partition in (0, 2):
        driver.task(plan, "r1", 0, partition=partition).run()
    driver.task(plan, "r1", 1, partition=1).run()


@pytest.mark.parametrize("again", ["1009", "1001"])
def test_nothing_continues_from_batches_that_a_rewind_left(
    client: Client, config: Config, again: str
) -> None:
    """Batch 1 ended everywhere. It was run again, and a limit stopped it: as it was, or anew?"""
    driver = Driver(client, config, partitions=2)
    plan = driver.plan()
    for batch in (0, 1):
        for partition in (0, 1):
            driver.task(plan, "r1", batch, partition=partition).run()
    driver.task(plan, "r2", 1, planned=again).run()
    for run in ("r2", "r3"):
        task = driver.task(plan, run, 2, partition=1)
        if again == "1001":
            # As it was: what was written before is the same.
            assert task.run().read == b"r1:0 r1:1 "
            continue
        with pytest.raises(StateError, match="partition 1 does not hold version 2"):
            task.join()
    if again != "1001":
        driver.task(plan, "r4", 1, partition=0, planned="1010").run()
        driver.task(plan, "r4", 1, partition=1, planned="1010").run()
        assert driver.task(plan, "r4", 2, partition=1).run().read == b"r1:0 r4:1 "


def test_query_forgotten_before_its_first_batch_starts_as_new(
    driver: Driver,
) -> None:
    plan = driver.plan()
    query = keys.query(plan.gen, tenant=TENANT)
    driver.client.call("a day goes by", [("UNLINK", query)])
    driver.task(plan, "r1", 0).run()
    (found,) = driver.client.call("looking", [("HGETALL", query)])
    assert parse_operators(found)


def test_a_query_that_restarts_for_years_keeps_its_newest_runs(driver: Driver) -> None:
    plan = driver.plan()
    for start in range(70):
        driver.task(plan, f"run-{start}", 0).join()
    (found,) = driver.client.call("looking", [("HGETALL", keys.query(plan.gen, tenant=TENANT))])
    runs = {field for field in found if field.startswith(b"run:")}
    assert runs == {b"run:run-%d" % start for start in range(6, 70)}


# ---- the script's rules, against a model of them ------------------------------------------------


@dataclass
class Rules:
    """Rules of joining: only the newest call's newest run may join, and only with its frame.

    Attributes:
        epochs: How many there were.
        frames: The batch of each frame that was shown.
        shown: By batch, the epoch that showed a frame for it last, and the frame.
    """

    owner: tuple[int, str, int] | None = None
    query: str | None = None
    newest: int | None = None
    begun: tuple[int, str, str] | None = None
    epochs: int = 0
    frames: dict[str, int] = field(default_factory=dict)
    shown: dict[int, tuple[int, str]] = field(default_factory=dict)

    def join(
        self, plan: int, run: str, attempt: int, batch: int, query: str, watermark: str, frame: str
    ) -> tuple[str, str]:
        if self.query is not None and query != self.query:
            return "QUERY", self.query
        own = self.epochs + 1
        if self.owner is not None:
            was_plan, was_run, was_attempt = self.owner
            if run == was_run:
                if plan != was_plan:
                    return "TWICE", ""
                own = self.epochs
            elif (plan, attempt) <= (was_plan, was_attempt):
                return "FENCED", ""
        last = self.newest
        if last is None and batch:
            return "GAP", "-"
        if last is not None and batch not in (last, last + 1):
            return ("GAP" if batch > last else "OLD"), str(last)
        by, shown = self.shown.get(batch, (0, ""))
        if (by != own and frame in self.frames) or (by == own and frame != shown):
            return "STALE", str(self.frames.get(frame, "-"))
        self.frames[frame] = batch
        self.shown[batch] = own, frame
        if own > self.epochs:
            self.owner, self.query, self.epochs = (plan, run, attempt), query, own
        if self.begun is not None and self.begun[:2] == (batch, run):
            return "OK", self.begun[2]
        if not watermark:
            return "BEGIN", ""
        self.newest, self.begun = batch, (batch, run, watermark)
        return "OK", watermark


class Script:
    """Sends the calls of `Rules` to the script."""

    def __init__(self, client: Client) -> None:
        self.client, self.name = client, uuid.uuid4().hex
        self.plans: list[StreamPlan] = []
        self.rules = Rules()
        self.epochs: list[tuple[str, int]] = []
        self.began: dict[int, str] = {}

    def call(self) -> None:
        self.plans.append(call(self.client, self.name))

    def join(
        self,
        plan: int,
        run: str,
        attempt: int,
        batch: int,
        query: str = QUERY,
        frame: str = "",
        mark: str = "",
    ) -> str:
        frame = frame or frame_of(run, batch)
        place = TaskPlace(query, run, batch, 0, attempt, "1000", frame)
        wanted = self.rules.join(plan, run, attempt, batch, query, mark, frame)
        try:
            reply = streams._join(self.client, self.plans[plan - 1], place, "it", mark)
        except ConflictError:
            reply = ["FENCED", ""]
        except (UsageError, StateError) as error:
            reply = self._named(str(error), batch)
        assert (reply[0], reply[-1] if reply[0] not in ("BEGIN", "FENCED") else "") == wanted
        if reply[0] in ("OK", "BEGIN"):
            epoch = int(reply[1])
            if not self.epochs or self.epochs[-1][0] != run:
                assert all(epoch > known for _, known in self.epochs)
                self.epochs.append((run, epoch))
            assert self.epochs[-1] == (run, epoch)
        if reply[0] == "OK":
            assert self.began.setdefault(batch, reply[2]) == reply[2]
        return reply[0]

    def _named(self, error: str, batch: int) -> list[str]:
        if "belongs to the query" in error:
            return ["QUERY", error.split("belongs to the query ")[1].split(",")[0]]
        if "two calls" in error:
            return ["TWICE", ""]
        if "the DataFrame belongs to" in error:
            named = re.search(r"belongs to (?:batch (\d+)|(this batch)|another)", error)
            assert named is not None
            return ["STALE", named[1] or (str(batch) if named[2] else "-")]
        if "Redis knows no store" in error:
            return ["GAP", "-"]
        last = str(self.rules.newest)
        assert f"the newest batch is {last}" in error
        return ["GAP" if "so the next one" in error else "OLD", last]


def test_every_short_schedule_keeps_the_rules(client: Client) -> None:
    """Two calls, two runs of each, a task of the older one that wakes up late, two batches."""
    moves: list[tuple[int, str, int, int]] = [
        (plan, run, attempt, batch)
        for plan, run, attempt in ((1, "a", 1), (1, "b", 5), (1, "b", 6), (2, "c", 8), (2, "a", 9))
        for batch in (0, 1)
    ]
    for second_call in range(4):
        for schedule in product(moves, repeat=3):
            if any(plan > 1 for plan, *_ in schedule[:second_call]):
                continue
            script = Script(client)
            script.call()
            for number, move in enumerate(schedule):
                if number == second_call:
                    script.call()
                if move[0] <= len(script.plans) and script.join(*move) == "BEGIN":
                    script.join(*move, mark=str(number))


@pytest.mark.parametrize("seed", range(8))
def test_long_schedules_keep_the_rules(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        script = Script(client)
        script.call()
        pending: list[tuple[int, str, int, int, str, str]] = []
        runs = {"run-0": 1}
        for attempt in range(1, 41):
            match rng.randrange(8):
                case 0 if len(script.plans) < 4:
                    script.call()
                case 1:
                    runs[f"run-{len(runs)}"] = rng.randrange(len(script.plans)) + 1
                case 2:
                    # A task that began long ago goes on now.
                    if pending:
                        script.join(*rng.choice(pending), mark=rng.choice(["", "3"]))
                case _:
                    run = rng.choice(list(runs)[-2:])
                    batch = max(0, (script.rules.newest or 0) + rng.choice([-1, 0, 0, 1, 1, 2]))
                    query = QUERY if rng.random() < 0.95 else "another"
                    # A frame that the driver kept, of this run or of one before.
                    kept = frame_of(rng.choice(list(runs)), max(0, batch - rng.randrange(3)))
                    frame = kept if rng.random() < 0.15 else frame_of(run, batch)
                    move = (runs[run], run, attempt, batch, query, frame)
                    pending.append(move)
                    if rng.random() < 0.8 and script.join(*move) == "BEGIN":
                        script.join(*move, mark=str(rng.randrange(9)))


# ---- a task of an older run that wakes up late --------------------------------------------------


def interleavings(one: int, other: int) -> Iterator[list[int]]:
    for places in combinations(range(one + other), one):
        yield [0 if at in places else 1 for at in range(one + other)]


@pytest.mark.parametrize("who", ["an older run", "an older call", "an older driver"])
def test_zombie_never_changes_the_base_of_the_newer_run(
    client: Client, config: Config, who: str
) -> None:
    """Both evaluate batch 1. Whatever comes between, batch 2 reads what the newer run wrote."""
    went_on = 0
    for schedule in interleavings(4, 4):
        driver = Driver(client, config)
        plan = driver.plan()
        driver.task(plan, "old", 0, text="first").run()
        zombie = driver.task(plan, "old", 1, text="zombie")
        if who == "an older driver":
            driver.attempts = 0
        newer_plan = plan if who == "an older run" else driver.plan()
        newer = driver.task(newer_plan, "new", 1, text="newer")
        steps = [iter(zombie.steps), iter(newer.steps)]
        for turn in schedule:
            try:
                next(steps[turn], lambda: None)()
            except ConflictError:
                # Of the two only the zombie may come too late.
                assert turn == 0, schedule
                steps[0] = iter(())
        assert newer.read == b"first ", schedule
        after = driver.task(newer_plan, "new", 2)
        after.join()
        after.open()
        after.change()
        assert after.read == b"first newer ", schedule
        went_on += 1
        # It comes to nothing later as well.
        for step in steps[0]:
            with pytest.raises(RedisStateError):
                step()
        after.commit()
        last = driver.task(newer_plan, "new", 3).run()
        assert last.read == b"first newer new:2 "
    assert went_on == 70


def test_zombie_of_an_ended_batch_never_splits_the_next_ones_base(
    client: Client, config: Config
) -> None:
    """Batch 1 ended by another attempt; a restart begins batch 2 while the zombie still runs.

    Until the newer run takes the partition it is one of the two attempts, both of which did the
    same work; from then on it is that one for ever.
    """
    for schedule in interleavings(4, 4):
        driver = Driver(client, config)
        plan = driver.plan()
        driver.task(plan, "old", 0, text="first").run()
        driver.task(plan, "old", 1, text="A").run()
        zombie = driver.task(plan, "old", 1, text="B")
        newer = driver.task(plan, "new", 2, text="newer")
        steps = [iter(zombie.steps), iter(newer.steps)]
        for turn in schedule:
            try:
                next(steps[turn], lambda: None)()
            except ConflictError:
                if turn:
                    # Its version was replaced under it: Spark tries the task again.
                    newer = driver.task(plan, "new", 2, text="newer")
                    newer.run()
                steps[turn] = iter(())
        assert newer.read in (b"first A ", b"first B "), schedule
        assert driver.task(plan, "new", 3).run().read == newer.read + b"newer ", schedule


def test_attempts_of_one_task_may_run_concurrently(client: Client, config: Config) -> None:
    """As speculation starts them: whichever commits, the next batch reads one of them."""
    for schedule in interleavings(4, 4):
        driver = Driver(client, config)
        plan = driver.plan()
        driver.task(plan, "run", 0, text="first").run()
        both = [driver.task(plan, "run", 1, text=text) for text in "AB"]
        steps = [iter(one.steps) for one in both]
        for turn in schedule:
            next(steps[turn])()
        assert [one.read for one in both] == [b"first "] * 2
        after = driver.task(plan, "run", 2).run()
        assert after.read in (b"first A ", b"first B ")


def test_late_speculative_attempt_is_refused(client: Client, config: Config) -> None:
    """Spark killed it, and it did not die at once."""
    for schedule in interleavings(4, 4):
        driver = Driver(client, config)
        plan = driver.plan()
        driver.task(plan, "run", 0, text="first").run()
        sibling = driver.task(plan, "run", 1, text="B")
        driver.task(plan, "run", 1, text="A").run()
        after = driver.task(plan, "run", 2, text="next")
        steps = [iter(sibling.steps), iter(after.steps)]
        for turn in schedule:
            try:
                next(steps[turn], lambda: None)()
            except (ConflictError, UsageError):
                if turn:
                    after = driver.task(plan, "run", 2, text="next")
                    after.run()
                steps[turn] = iter(())
        assert after.read in (b"first A ", b"first B "), schedule
        assert driver.task(plan, "run", 3).run().read == after.read + b"next ", schedule
