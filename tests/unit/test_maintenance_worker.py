"""The maintenance thread of loaded providers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest

from redis_state.errors import UnavailableError
from redis_state.store.maintenance import Maintained, MaintenanceWorker
from tests.support.manual_clock import ManualClock

INTERVAL_S = 60.0
JITTER = 0.25
DEADLINE_S = 60.0


@dataclass
class Server:
    name: str = "redis://a:1/0"
    is_silent: bool = False
    tries: int = 0

    def answers(self) -> bool:
        self.tries += 1
        return not self.is_silent


@dataclass
class Provider:
    error: Exception | None = None
    passes: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    server: Server = field(default_factory=Server)

    def do_maintenance(self) -> None:
        self.passes += 1
        self.done.set()
        if self.error is not None:
            raise self.error


class Loaded:
    """The loaded providers of a process."""

    def __init__(self, **providers: Provider) -> None:
        self.providers: dict[Hashable, Maintained] = dict(providers.items())
        self.errors: dict[Hashable, Exception] = {}

    def __call__(self) -> dict[Hashable, Maintained]:
        return dict(self.providers)

    def unload(self, id_: Hashable, error: Exception) -> None:
        del self.providers[id_]
        self.errors[id_] = error


def worker(loaded: Loaded, clock: ManualClock) -> MaintenanceWorker:
    return MaintenanceWorker(
        loaded,
        unload=loaded.unload,
        interval_s=INTERVAL_S,
        jitter=JITTER,
        clock=clock,
        threaded=False,
    )


def test_a_provider_is_maintained_once_an_interval() -> None:
    clock, provider = ManualClock(), Provider()
    one = worker(Loaded(a=provider), clock)
    seconds = 0
    for seconds in range(600):
        clock.now_s = seconds
        one.tick()
    assert provider.passes >= 600 / (INTERVAL_S * (1 + JITTER)) - 1
    assert provider.passes <= 600 / (INTERVAL_S * (1 - JITTER))


def test_intervals_differ_by_no_more_than_the_jitter() -> None:
    gaps = set()
    for _ in range(50):
        clock, provider = ManualClock(), Provider()
        one = worker(Loaded(a=provider), clock)
        while not provider.passes:
            clock.now_s += 0.5
            one.tick()
        gaps.add(clock.now_s)
    assert min(gaps) >= INTERVAL_S * (1 - JITTER)
    assert max(gaps) <= INTERVAL_S * (1 + JITTER) + 0.5
    assert len(gaps) > 1


def test_error_unloads_only_its_provider(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, fine = Provider(ValueError("no")), Provider()
    loaded = Loaded(a=broken, b=fine)
    one = worker(loaded, ManualClock())
    assert one.run_pass() == 1
    assert loaded.errors == {"a": broken.error}
    assert (fine.passes, list(loaded.providers)) == (1, ["b"])
    assert "maintenance of a failed, so it is unloaded: no" in caplog.text
    assert one.run_pass() == 0
    assert (broken.passes, fine.passes) == (1, 2)


class OnServer(Provider):
    """Waits for its server until the deadline."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        super().__init__(server=server)
        self.clock = clock

    def do_maintenance(self) -> None:
        super().do_maintenance()
        if self.server.is_silent:
            self.clock.now_s += DEADLINE_S
            raise UnavailableError("maintaining", found="no answer")


def test_silent_server_holds_one_provider_and_unloads_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, silent, other = ManualClock(), Server(is_silent=True), Server("redis://b:1/0")
    providers = {f"a{n}": OnServer(silent, clock) for n in range(9)}
    fine = OnServer(other, clock)
    loaded = Loaded(**providers, b=fine)
    one = worker(loaded, clock)
    assert one.run_pass() == 1
    assert (clock.now_s, fine.passes, loaded.errors) == (DEADLINE_S, 1, {})
    clock.now_s += INTERVAL_S
    tries = silent.tries
    with caplog.at_level(logging.INFO):
        assert one.run_pass() == 0
    assert (silent.tries - tries, fine.passes) == (1, 2)
    assert sum(provider.passes for provider in providers.values()) == 1
    silent.is_silent = False
    clock.now_s += INTERVAL_S
    with caplog.at_level(logging.INFO):
        assert one.run_pass() == 0
    assert sum(provider.passes for provider in providers.values()) == 10
    assert caplog.text.count("redis://a:1/0 does not answer") == 1
    assert "redis://a:1/0 answers again after 120 s" in caplog.text


def test_pauses_of_a_silent_server_double_up_to_a_minute() -> None:
    clock, silent = ManualClock(), Server(is_silent=True)
    one = worker(Loaded(a=OnServer(silent, clock), b=OnServer(silent, clock)), clock)
    one.run_pass()
    tried, begin = [], clock.now_s
    for second in range(200):
        clock.now_s, tries = begin + second, silent.tries
        one.run_pass()
        tried += [second] * (silent.tries - tries)
    assert tried == [1, 3, 7, 15, 31, 63, 123, 183]


def test_unavailable_folder_unloads_its_provider_only() -> None:
    server = Server()
    broken = Provider(UnavailableError("writing a file", found="no answer"), server=server)
    fine = Provider(server=server)
    loaded = Loaded(a=broken, b=fine)
    assert worker(loaded, ManualClock()).run_pass() == 1
    assert (list(loaded.errors), fine.passes) == (["a"], 1)


def test_unavailable_folder_after_a_silence_skips_no_other_provider() -> None:
    clock, server = ManualClock(), Server(is_silent=True)
    broken, fine = OnServer(server, clock), OnServer(server, clock)
    loaded = Loaded(a=broken, b=fine)
    one = worker(loaded, clock)
    one.run_pass()
    server.is_silent = False
    broken.error = UnavailableError("writing a file", found="no answer")
    clock.now_s += INTERVAL_S
    assert one.run_pass() == 1
    assert (list(loaded.errors), fine.passes) == (["a"], 1)


def test_an_unload_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    fine = Provider()
    loaded = Loaded(a=Provider(ValueError("no")), b=fine)

    def fail(_id: Hashable, _error: Exception) -> None:
        raise OSError("neither")

    one = MaintenanceWorker(loaded, unload=fail, threaded=False)
    with caplog.at_level(logging.ERROR):
        assert one.run_pass() == 1
    assert fine.passes == 1
    assert "unloading a failed" in caplog.text


def test_the_thread_starts_once_and_stops() -> None:
    provider = Provider()
    one = MaintenanceWorker(Loaded(a=provider), interval_s=0.01)
    assert not one.is_running
    for _ in range(3):
        one.start()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("redis-state-maintenance") == 1
    assert provider.done.wait(30)
    one.stop()
    assert not one.is_running
    one.start()
    assert one.is_running
    provider.done.clear()
    assert provider.done.wait(30)
    one.stop()


def test_a_pass_ends_early_when_it_is_stopped() -> None:
    one: list[MaintenanceWorker] = []

    class Stopping(Provider):
        def do_maintenance(self) -> None:
            super().do_maintenance()
            one[0].stop()

    first, second = Stopping(), Provider()
    one.append(MaintenanceWorker(Loaded(a=first, b=second), threaded=False))
    one[0].run_pass()
    assert (first.passes, second.passes) == (1, 0)


def test_busy_stopped_thread_does_not_block_a_new_one() -> None:
    entered, released = threading.Event(), threading.Event()

    class Slow(Provider):
        def do_maintenance(self) -> None:
            super().do_maintenance()
            entered.set()
            assert released.wait(60)

    slow = Slow()
    one = MaintenanceWorker(Loaded(a=slow), interval_s=0.01)
    one.start()
    assert entered.wait(30)
    older = one._background._thread
    assert older is not None
    one.stop(timeout_s=0)
    one.start()
    assert one._background._thread is not older
    released.set()
    older.join(30)
    assert not older.is_alive()
    slow.done.clear()
    assert slow.done.wait(30), "the new thread goes on"
    one.stop()


def test_failure_to_list_providers_does_not_end_the_thread() -> None:
    asked = threading.Semaphore(0)

    def fail() -> dict[Hashable, Maintained]:
        asked.release()
        raise ValueError("no")

    one = MaintenanceWorker(fail, interval_s=0.01)
    one.start()
    for _ in range(2):
        assert asked.acquire(timeout=30)
    one.stop()


def test_a_forked_process_starts_a_thread_of_its_own() -> None:
    one = MaintenanceWorker(Loaded(), interval_s=1000)
    one.start()
    background = one._background
    parents, events = background._thread, (background.stopping, background._awake)
    background.after_fork()
    assert not one.is_running
    one.start()
    assert one.is_running
    assert background._thread is not parents
    one.stop()
    assert parents is not None
    assert parents.is_alive(), "it is the parent's"
    for event in events:
        event.set()
    parents.join(30)
