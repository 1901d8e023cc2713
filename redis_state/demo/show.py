"""Steps of the demo, and their output."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import redis_state
from redis_state.demo import check, live, report
from redis_state.demo.child import Child
from redis_state.demo.data import load_flights, write_days
from redis_state.demo.queries import QUERIES
from redis_state.live import Reader

_BATCHES_PER_QUERY = 7
_READ_EVERY_S = 3.0
_POLL_S = 0.1


class DemoScreen:
    """One run of the demo.

    Args:
        folder: An empty folder for everything that the job reads and writes.
        redis: A running server for its state.
    """

    def __init__(self, folder: Path, redis: redis_state.EmbeddedRedis) -> None:
        self._folder = folder
        self._redis = redis
        self._console = Console()

    def run(self) -> int:
        """Runs the demo; returns 0 if every result was right, else 1."""
        started_s = time.monotonic()
        console = self._console
        console.print("Reading the flights …")
        flights = load_flights()
        days = write_days(flights, self._folder / "days")
        console.print(
            f"{len(flights):,} flights in {days} files, one a day; Redis {self._version()}."
        )
        empty_bytes = self._redis_bytes()
        with redis_state.connect(self._redis.url) as reader:
            self._stream(days, reader)
            redis_bytes = self._redis_bytes() - empty_bytes
            right = self._check(flights, reader)
        progress = report.read_progress(self._folder / "progress.jsonl")
        all_figures = {query.name: report.figures(progress, query.name) for query in QUERIES}
        console.print(report.table(all_figures, redis_bytes=redis_bytes))
        console.print(f"{time.monotonic() - started_s:.0f} s in all.")
        return 0 if right else 1

    def _stream(self, days: int, reader: Reader) -> None:
        """Runs the job to its end, with a kill half way."""
        files = math.ceil(days / _BATCHES_PER_QUERY)
        batches = len(QUERIES) * math.ceil(days / files)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with (
            Child(self._folder, url=self._redis.url, files_per_batch=files) as job,
            Progress(*columns, console=self._console) as bar,
        ):
            task = bar.add_task("batches", total=batches)
            bar.console.print("Starting Spark, with four queries whose state is in Redis …")
            lines = live.reads(reader)
            job.start()
            killed = False
            read_at_s = 0.0
            while job.running():
                done = self._batches_done()
                bar.update(task, completed=min(done, batches))
                if not killed and done >= batches / 2:
                    job.kill()
                    killed = True
                    bar.console.print(
                        f"[bold]kill -9[/bold] of the job after {done} of {batches} batches;"
                        " a new one starts on the same checkpoints.",
                        soft_wrap=True,
                    )
                    job.start()
                # A batch's state is confirmed, and can be read, once the next batch has opened it.
                if done > len(QUERIES) and time.monotonic() - read_at_s > _READ_EVERY_S:
                    bar.console.print(f"  live {next(lines)}", highlight=False, soft_wrap=True)
                    read_at_s = time.monotonic()
                time.sleep(_POLL_S)
            bar.update(task, completed=batches)

    def _check(self, flights: pd.DataFrame, reader: Reader) -> bool:
        """Compares every result; returns whether all are right."""
        right = True
        for query in QUERIES:
            rows, found = check.differences(query, flights, self._folder, reader)
            verdict = "differs" if found else "equal"
            self._console.print(
                f"{query.name:10} {rows:6,} rows against a plain computation: {verdict}",
                style="red" if found else "green",
                highlight=False,
            )
            for line in found:
                self._console.print(f"  {line}", highlight=False, markup=False)
            right = right and not found
        return right

    def _batches_done(self) -> int:
        """Returns the number of batches that Spark has logged as committed, over all queries."""
        logs = self._folder.glob("checkpoints/*/commits/*")
        return sum(1 for path in logs if path.name.isdigit())

    def _redis_bytes(self) -> int:
        with self._redis.client() as client:
            return int(client.info("memory")["used_memory"])

    def _version(self) -> str:
        with self._redis.client() as client:
            return str(client.info("server")["redis_version"])
