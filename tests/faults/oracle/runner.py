"""Runs schedules by their seeds and sums up what they met."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from unittest import mock

from redis_state import config as options
from redis_state.backend.transport import ServerTransport, Transport
from redis_state.errors import RedisStateError
from redis_state.protocol import SegmentGoneError, hot_runs, partition, retention, runs
from redis_state.store import checkpoint_link, partition_state
from tests.faults.campaign import Failure
from tests.faults.oracle.by_uid import partition_client, pieces, pieces_but_last
from tests.faults.oracle.copy_schedule import CopySchedule
from tests.faults.oracle.copy_walks import CopyWalks
from tests.faults.oracle.direct import DirectTransport
from tests.faults.oracle.ending import Ending
from tests.faults.oracle.file_schedule import FileSchedule
from tests.faults.oracle.network import HangError
from tests.faults.oracle.pin_schedule import PinSchedule
from tests.faults.oracle.purge_schedule import PurgeSchedule
from tests.faults.oracle.schedule import Schedule
from tests.faults.oracle.seeds import played
from tests.faults.oracle.stream_schedule import StreamSchedule

DESTRUCTIVE_EVERY = 4
"""One schedule in so many runs on a server that loses data."""

WHOLE_EVERY = 45
"""One schedule in so many leaves nothing out: it goes over the store's own transport, looks at the
server with each run and keeps the list of checkpoints, on which nothing depends that is judged."""

FORMATS = ((1,), (1,), (2,), (1, 2))
"""Checkpoint formats of a schedule; with two of them the query goes over to the second one."""


class Runner:
    """Schedules on one server, one after the other.

    Attributes:
        counters: What all of them met.
    """

    def __init__(self, url: str, path: Path) -> None:
        self._url = url
        self._library = ServerTransport(options.parse({"url": url, "connectionsMax": 4}))
        self._direct = DirectTransport(path)
        self.counters: Counter[str] = Counter()

    def run(self, seed: int) -> Failure | None:
        """One schedule; ``None`` if no rule was broken."""
        whole = seed % WHOLE_EVERY == 0
        server = self._library if whole else self._direct
        self.counters["schedules"] += 1
        with self._patches(), _names_of(seed), _quiet(), nullcontext() if whole else _unlisted():
            schedule = self._schedule(seed, server)
            if isinstance(schedule, (PurgeSchedule, PinSchedule)):
                problems = schedule.problems
            else:
                problems = schedule.timeline.problems
            try:
                with schedule.network.watchdog:
                    schedule.run()
                    if isinstance(schedule, Schedule):
                        Ending(schedule).run()
            except HangError as error:
                self.counters["hangs"] += 1
                problems = [f"{error} hangs"]
            except RedisStateError as error:
                problems = [f"outside of any actor: {error}"]
            finally:
                schedule.network.end()
                if whole:
                    self._direct.forget_scripts()
        return Failure(seed, tuple(problems)) if problems else None

    def _schedule(
        self, seed: int, server: Transport
    ) -> Schedule | StreamSchedule | PurgeSchedule | PinSchedule:
        destructive = seed // len(FORMATS) % DESTRUCTIVE_EVERY == 0
        kind = played(seed)
        if kind == "purge":
            return PurgeSchedule(seed, server, self._url, self.counters)
        if kind == "pin":
            return PinSchedule(seed, server, self._url, self.counters)
        if kind == "file":
            return FileSchedule(seed, server, self._url, self.counters)
        if kind == "copy":
            return CopySchedule(seed, server, self._url, self.counters)
        if kind == "walks":
            return CopyWalks(seed, server, self._url, self.counters)
        if kind == "stream":
            return StreamSchedule(seed, server, self._url, self.counters, destructive=destructive)
        formats = FORMATS[seed % len(FORMATS)]
        return Schedule(
            seed,
            server,
            self._url,
            self.counters,
            destructive=destructive,
            formats=formats,
            timed=kind == "timed",
            previews=kind == "preview",
        )

    def close(self) -> None:
        """Close the connections."""
        self._library.close()
        self._direct.close()

    @contextmanager
    def _patches(self) -> Iterator[None]:
        begin = SegmentGoneError.__init__

        def counted(error: SegmentGoneError, *args: object) -> None:
            self.counters["segment replaced while it was read"] += 1
            begin(error, *args)  # type: ignore[arg-type]

        with (
            mock.patch.object(partition, "chunks", pieces),
            mock.patch.object(partition, "split_last", pieces_but_last),
            mock.patch.object(retention, "FIELDS_MAX", 1),
            # Its executors are of one run, as those of Spark are, and share the process here.
            mock.patch.object(partition_state, "own_run", lambda run_id: run_id),
            mock.patch.object(checkpoint_link, "PartitionClient", partition_client),
            mock.patch.object(SegmentGoneError, "__init__", counted),
            # What one schedule has met, another process has not.
            mock.patch.dict(hot_runs._left_out, clear=True),
        ):
            yield


@contextmanager
def _unlisted() -> Iterator[None]:
    def nothing(*_: object, **__: object) -> None:
        return None

    with (
        mock.patch.object(checkpoint_link, "confirm_checkpoint", nothing),
        mock.patch.object(runs, "check_server", nothing),
    ):
        yield


@contextmanager
def _names_of(seed: int) -> Iterator[None]:
    """The names of runs and attempts follow from the seed, so that a replay is the same again."""
    random = Random(f"names {seed}")

    def name() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128), version=4)

    def digits(number: int) -> str:
        return f"{random.getrandbits(8 * number):0{2 * number}x}"

    with (
        mock.patch.object(uuid, "uuid4", name),
        mock.patch.object(secrets, "token_hex", digits),
    ):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("redis_state")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
