"""The faults that strike a run (kills, pauses, bad lines), and the plan that a seed makes."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.feed import FAMILIES
from tests.faults.job import EXECUTOR_LOST_S
from tests.faults.processes import kill, send
from tests.faults.rig import Run
from tests.support.tcp_proxy import Fault

Strike = Callable[[Run, random.Random], None]

CONFLICTS = (
    "REDIS_FENCED",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
)
"""What two drivers of one checkpoint may end with: one of them has to give way."""

_CHANCES = {
    Fault.CUT: 0.2,
    Fault.DELAY: 0.3,
    Fault.BLACK_HOLE: 0.1,
    Fault.REPLY_LOST: 0.2,
    Fault.SLICES: 0.5,
}
_MET_MAX = 8
_STOPPED_S_MAX = 3.0
_DOWN_S_MAX = 3.0
_LINES_BESIDE_ZOMBIE = 3
_TERMINATED = 1 << (signal.SIGTERM - 1)


def _pause(seconds: float) -> None:
    """Waits while a fault lasts; no event is expected to end it."""
    threading.Event().wait(seconds)


def _victim(run: Run, dice: random.Random, found: Callable[[], list[int]]) -> int:
    run.wait("a process to strike", found)
    return dice.choice(sorted(found()) or [0])


def executor_killed(run: Run, dice: random.Random) -> None:
    kill(_victim(run, dice, run.rig.driver.executors))


def worker_killed(run: Run, dice: random.Random) -> None:
    kill(_victim(run, dice, run.rig.driver.workers))


def driver_killed(run: Run, _dice: random.Random) -> None:
    """Its executors live on until they notice, and a new driver begins at once."""
    run.rig.driver.kill()
    run.start()


def redis_killed(run: Run, dice: random.Random) -> None:
    run.rig.server.kill()
    _pause(dice.uniform(0, _DOWN_S_MAX))
    run.rig.server.restart()


def executor_stopped(run: Run, dice: random.Random) -> None:
    """Stops an executor until Spark has given up on it, then resumes it amid its work."""
    pid = _victim(run, dice, run.rig.driver.executors)
    send(pid, signal.SIGSTOP)
    try:
        run.wait("an executor to be given up", lambda: run.is_done() or _is_given_up(pid))
    finally:
        send(pid, signal.SIGCONT)


def _is_given_up(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = (line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return any(int(line.split()[1], 16) & _TERMINATED for line in pending)


def worker_stopped(run: Run, dice: random.Random) -> None:
    pid = _victim(run, dice, run.rig.driver.workers)
    send(pid, signal.SIGSTOP)
    _pause(dice.uniform(0, _STOPPED_S_MAX))
    send(pid, signal.SIGCONT)


def driver_stopped(run: Run, dice: random.Random) -> None:
    """Stops the driver for so long that it takes its executors for lost when it wakes."""
    pids = run.rig.driver.processes()
    for pid in pids:
        send(pid, signal.SIGSTOP)
    _pause(EXECUTOR_LOST_S + dice.uniform(0, _STOPPED_S_MAX))
    for pid in pids:
        send(pid, signal.SIGCONT)


def driver_replaced(run: Run, _dice: random.Random) -> None:
    """Stops a driver, lets another one continue its work, then resumes the first one.

    Not in the first batch: what two drivers may do to that is not promised (docs/reliability.md).
    """

    def all_logged_the_first() -> bool:
        return run.is_done() or all(len(run.outputs(family)) > 1 for family in FAMILIES)

    run.wait("the second batch of every family", all_logged_the_first)
    zombie = run.rig.driver
    pids = zombie.processes()
    for pid in pids:
        send(pid, signal.SIGSTOP)
    run.rig.replace_driver()
    run.start(also_restarted=CONFLICTS)
    before = run.lines()
    run.wait("the new driver", lambda: run.is_done() or run.lines() > before)
    for pid in pids:
        send(pid, signal.SIGCONT)
    before = run.lines()
    enough = before + _LINES_BESIDE_ZOMBIE
    run.wait("both drivers", lambda: run.is_done() or run.lines() >= enough)
    zombie.kill_all()


def _on_the_line(fault: Fault) -> Strike:
    def strike(run: Run, dice: random.Random) -> None:
        proxy = run.rig.proxy
        enough = proxy.met[fault] + dice.randint(2, _MET_MAX)
        if fault is Fault.CUT:
            proxy.cut()
        proxy.set({fault: _CHANCES[fault]})
        try:
            run.wait(fault.value, lambda: run.is_done() or proxy.met[fault] >= enough)
        finally:
            proxy.set({})

    return strike


PROCESSES: dict[str, Strike] = {
    "executor killed": executor_killed,
    "driver killed": driver_killed,
    "Python worker killed": worker_killed,
    "Redis killed": redis_killed,
    "executor stopped": executor_stopped,
    "driver replaced while it slept": driver_replaced,
    "Python worker stopped": worker_stopped,
    "driver stopped": driver_stopped,
}
LINES: dict[str, Strike] = {f"line: {fault.value}": _on_the_line(fault) for fault in Fault}
STRIKES = PROCESSES | LINES
_AGAIN = ("executor killed", "Python worker killed", "Redis killed", *LINES)


@dataclass(frozen=True)
class Plan:
    """Schedule of strikes: each comes once, after so many batches and a pause."""

    seed: int
    batches: int
    checkpoint_format: int
    strikes: tuple[tuple[int, float, str], ...]

    def __str__(self) -> str:
        told = ", ".join(f"{name} after {lines}" for lines, _, name in self.strikes)
        return f"seed {self.seed}, checkpoint format {self.checkpoint_format}: {told}"


def plan(seed: int, *, batches: int = 4) -> Plan:
    """Seeds that follow each other go through all the strikes."""
    dice = random.Random(f"plan {seed}")
    names = [
        list(PROCESSES)[seed % len(PROCESSES)],
        list(LINES)[seed % len(LINES)],
        dice.choice(_AGAIN),
    ]
    dice.shuffle(names)
    last = (batches - 1) * len(FAMILIES) - len(FAMILIES) // 2
    lines = sorted(dice.randint(1, last) for _ in names)
    pauses = [dice.uniform(0, 0.4) for _ in names]
    return Plan(seed, batches, 1 + seed % 2, tuple(zip(lines, pauses, names, strict=True)))


def strike(run: Run, made: Plan) -> list[str]:
    """Runs a plan to the end of the run; the strikes that came before it."""
    dice = random.Random(f"strikes {made.seed}")
    done = []
    run.start()
    for lines, pause, name in made.strikes:
        run.wait(name, lambda: run.is_done() or run.lines() >= lines)  # noqa: B023 - asked at once
        _pause(pause)
        if run.is_done():
            break
        STRIKES[name](run, dice)
        done.append(name)
    run.finish()
    return done
