"""Supervision of background threads: start, wake, stop, errors, forks and the end of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from redis_state.process import BackgroundThread
from tests.support.forking import in_child

WAIT_S = 30.0
ROOT = Path(__file__).parents[2]
EXITS = """
import atexit, time
steps = []
def compare():
    time.sleep(0.05)
    before = len(steps)
    time.sleep(0.05)
    late = BackgroundThread("late", lambda: None, lambda: 0.001, what="a late step")
    late.start()
    print(before > 0, len(steps) - before, late.is_running)
atexit.register(compare)
from redis_state.process import BackgroundThread
one = BackgroundThread(
    "test", lambda: steps.append(1), lambda: 0.001, what="a step", last=lambda: print("last")
)
one.start()
while not steps:
    time.sleep(0.001)
"""


class Steps:
    """Counts its calls; the thread's pauses last until it is woken."""

    def __init__(self, *, last: bool = False, pause_s: float | None = None) -> None:
        self.made = threading.Semaphore(0)
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.thread = BackgroundThread(
            "test",
            self.step,
            lambda: pause_s,
            what="a step",
            last=self.ended.set if last else None,
        )

    def step(self) -> None:
        self.made.release()
        if self.error is not None:
            raise self.error

    def made_one(self) -> bool:
        return self.made.acquire(timeout=WAIT_S)


def test_started_twice_runs_one_thread() -> None:
    one = Steps()
    one.thread.start()
    one.thread.start()
    assert [thread.name for thread in threading.enumerate()].count("redis-state-test") == 1
    one.thread.stop()
    assert not one.thread.is_running


def test_wake_ends_an_endless_pause() -> None:
    one = Steps()
    one.thread.start()
    for _ in range(2):
        one.thread.wake()
        assert one.made_one()
    one.thread.stop()


def test_wake_during_a_step_is_followed_by_another_step() -> None:
    made = threading.Semaphore(0)

    def step() -> None:
        made.release()
        thread.wake()

    thread = BackgroundThread("test", step, lambda: None, what="a step")
    thread.start()
    thread.wake()
    assert all(made.acquire(timeout=WAIT_S) for _ in range(3))
    thread.stop()


def test_error_is_logged_and_the_next_step_follows(caplog: pytest.LogCaptureFixture) -> None:
    one = Steps(pause_s=0.001)
    one.error = ValueError("no")
    one.thread.start()
    assert all(one.made_one() for _ in range(3))
    one.thread.stop()
    assert "a step failed; the next one is tried" in caplog.text
    assert {record.name for record in caplog.records} == {__name__}


def test_stop_waits_no_longer_than_its_deadline() -> None:
    entered, released = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert released.wait(WAIT_S)

    thread = BackgroundThread("test", hang, lambda: 0.0, what="a step")
    thread.start()
    assert entered.wait(WAIT_S)
    older, stopping = thread._thread, thread.stopping
    thread.stop(timeout_s=0)
    assert thread.is_running
    thread.start()
    assert thread._thread is not older
    assert (stopping.is_set(), thread.stopping.is_set()) == (True, False)
    released.set()
    assert older is not None
    older.join(WAIT_S)
    thread.stop()


def test_stop_within_a_step_does_not_wait_for_itself() -> None:
    done = threading.Event()

    def step() -> None:
        thread.stop()
        done.set()

    thread = BackgroundThread("test", step, lambda: 0.0, what="a step")
    thread.start()
    assert done.wait(WAIT_S)


def test_thread_with_a_last_call_stays_stopped() -> None:
    one = Steps(last=True)
    one.thread.start()
    one.thread.stop()
    assert one.ended.is_set()
    one.thread.start()
    assert not one.thread.is_running


def test_stop_before_the_first_start_prevents_a_thread_with_a_last_call() -> None:
    one = Steps(last=True)
    one.thread.stop()
    one.thread.start()
    assert not one.thread.is_running
    assert not one.ended.is_set()


def test_thread_without_a_last_call_starts_again() -> None:
    one = Steps()
    one.thread.start()
    one.thread.stop()
    one.thread.start()
    one.thread.wake()
    assert one.made_one()
    one.thread.stop()


def test_caller_that_runs_the_steps_gets_no_thread() -> None:
    thread = BackgroundThread("test", lambda: None, lambda: 0.0, what="a step", threaded=False)
    thread.stop()
    assert thread.stopping.is_set()
    thread.start()
    assert not thread.is_running
    assert not thread.stopping.is_set()


def test_forked_child_has_no_thread_and_starts_its_own() -> None:
    one = Steps()
    one.thread.start()

    def child() -> tuple[bool, bool]:
        was_running = one.thread.is_running
        one.thread.start()
        one.thread.wake()
        return was_running, one.made_one()

    with one.thread._starting:
        assert in_child(child) == (False, True)
    assert one.thread.is_running
    one.thread.stop()


def test_no_step_and_no_start_while_the_interpreter_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITS],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["True", "0", "False"]
