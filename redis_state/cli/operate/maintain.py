"""`redis-state maintain`: maintains state from Redis alone, as a service or once."""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.arguments.place import QUERY_HELP, add_query
from redis_state.cli.help import example
from redis_state.clock import SYSTEM, Clock
from redis_state.errors import ConfigError
from redis_state.maintain import MaintenanceReport, PassControl, Policy, vanished_checkpoints
from redis_state.maintain.service import Job, Service
from redis_state.progress import Progress

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

PROBLEMS_STATUS = 4
ALIVE_S = 30.0
_INTERVAL = "60s"
# Less than the shortest interval: otherwise every other pass would skip a partition.
_DONE_SHARE = 0.7
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LOG = logging.getLogger("redis_state.maintain")


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "maintain",
        help="add snapshots, drop old versions, verify and clean up",
        description="Maintain the state in a server from Redis alone: add snapshots where loading "
        "takes long, drop what no retained version needs, verify that published segments are "
        "whole, deactivate instances of runs that were replaced. No version that can be loaded "
        "changes. Several workers at once share the work. The command runs until SIGTERM or "
        "SIGINT.",
        epilog=example(
            "redis-state maintain --url redis://localhost:6379/0 --interval 60s",
            "redis-state maintain flights --url redis://localhost:6379/0 --once --deep",
            before=f"Exit status: 0 all is well, 1 an error, 2 wrong usage, {PROBLEMS_STATUS} with "
            "--once: problems were found, one a line on standard error.",
        ),
    )
    add_query(parser, optional=f"{QUERY_HELP}; without one all queries are maintained")
    parser.add_argument("--once", action="store_true", help="make one pass and exit")
    parser.add_argument(
        "--interval",
        type=_duration_ms,
        default=_INTERVAL,
        metavar="DURATION",
        help=f"time between two passes, such as 30s or 5m (default: {_INTERVAL})",
    )
    parser.add_argument("--deep", action="store_true", help="also read and check every block")
    parser.add_argument(
        "--orphans",
        action="store_true",
        help="expire segments that no manifest names; scans the database, once an hour",
    )
    parser.add_argument(
        "--vanished-after",
        type=_duration_ms,
        metavar="AGE",
        help="report checkpoints that were not used for this long, such as 30d",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help=(
            "expire the checkpoints that --vanished-after reports within a day, if an earlier "
            "pass reported them too"
        ),
    )
    parser.add_argument(
        "--alive-file",
        metavar="PATH",
        help=f"file that is written at each step and, between passes, every {ALIVE_S:.0f} s, for "
        "health checks; each worker needs its own",
    )
    parser.add_argument(
        "--unsigned-too",
        action="store_true",
        help="with --signing-key-file: also maintain state whose blocks are not signed",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Maintains once, or until a signal."""
    _check(arguments)
    config = config_of(arguments)
    line = ProgressLine()
    job = _job(arguments, tenant=keys.tenant_of(config.key_prefix))
    with closing(Client(config)) as client, _logging(line), _stopped_by_signals() as stop:
        steps = _Steps(stop, arguments.alive_file)
        service = Service(client, job, control=steps.control(line), wait=steps.wait)
        if arguments.vanished_after is not None and not arguments.yes:
            _name_vanished(client, arguments.vanished_after, job.tenant)
        if not arguments.once:
            service.run(arguments.interval / 1000, lambda report: _tell(report, line))
            return 0
        report = service.run_pass()
        line.end()
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    print(report)
    return PROBLEMS_STATUS if report.problems else 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.yes and arguments.vanished_after is None:
        raise ConfigError(
            "maintaining",
            found="--yes has no effect without an age",
            advice="Give --vanished-after AGE, or omit --yes.",
        )


def _job(arguments: argparse.Namespace, *, tenant: str) -> Job:
    service = not arguments.once
    policy = Policy(
        uuid.uuid4().hex,
        done_ms=int(arguments.interval * _DONE_SHARE) if service else 0,
        again=not service,
        deep=arguments.deep,
        unsigned_too=arguments.unsigned_too,
    )
    return Job(
        policy,
        query=arguments.query,
        tenant=tenant,
        orphans=arguments.orphans,
        vanished_ms=arguments.vanished_after if arguments.yes else None,
    )


def _tell(report: MaintenanceReport, line: ProgressLine) -> None:
    line.end()
    for problem in report.problems:
        _LOG.error("problem: %s", problem)
    _LOG.info("%s", report)


def _name_vanished(client: Client, age_ms: int, tenant: str) -> None:
    for one in vanished_checkpoints(client, age_ms=age_ms, tenant=tenant):
        print(f"seems to be unused: {one.called}: {one.why}", file=sys.stderr)


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a duration: give a number and s, m, h or d, such as 30s"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


class _Steps:
    """Signal to stop, and the file that proves progress to a health check."""

    def __init__(self, stop: threading.Event, path: str | None, *, clock: Clock = SYSTEM) -> None:
        self._stop = stop
        self._path = None if path is None else Path(path)
        self._clock = clock
        try:
            self._touch()
        except OSError as error:
            raise ConfigError(
                f"writing the file {path}",
                found=error.strerror or "it cannot be written",
                advice="Give a path in a folder that this user may write to as --alive-file.",
            ) from error

    def control(self, progress: Progress) -> PassControl:
        """Returns the callbacks of a pass, each of which proves progress."""

        def shown(what: str, done: int, total: int) -> None:
            self.step(what, done, total)
            progress(what, done, total)

        return PassControl(shown, self.stopped, self.step)

    def step(self, _what: str, _done: int, _total: int) -> None:
        """Proves progress inside of a partition, which is not shown."""
        self._beat()

    def stopped(self) -> bool:
        self._beat()
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Returns whether the stop came within this time."""
        until_s = self._clock.monotonic_s() + seconds
        while True:
            self._beat()
            left_s = until_s - self._clock.monotonic_s()
            if self._stop.wait(min(left_s, ALIVE_S)):
                return True
            if left_s <= ALIVE_S:
                return False

    def _beat(self) -> None:
        # A full disk must not end the upkeep: the file gets old, and the health check reports it.
        with suppress(OSError):
            self._touch()

    def _touch(self) -> None:
        if self._path is not None:
            self._path.touch()


class _Handler(logging.Handler):
    """Prints log lines on standard error, in the place of the progress line."""

    def __init__(self, line: ProgressLine) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.end()
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def _logging(line: ProgressLine) -> Iterator[None]:
    logger, handler = logging.getLogger("redis_state"), _Handler(line)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and SIGINT set; the current partition is finished first."""
    stop = threading.Event()
    previous = {
        number: signal.signal(number, lambda _number, _frame: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
