"""The Spark job as a child process: started, killed with its whole process group, awaited."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

# Parent folder of the package: a checkout, or the folder that the wheel was installed into.
_ROOT = Path(__file__).resolve().parents[2]
_LOG_LINES_SHOWN = 30
_GONE_S = 5.0
_POLL_S = 0.02


class JobFailedError(Exception):
    """The job ended with an error; the message holds the end of its log."""


class Child:
    """The job in a process group of its own, killed at the end of the `with` block.

    Args:
        folder: Holds the days and gets checkpoints, results and the log.
        url: URL of the Redis for the state.
        files_per_batch: Number of files that a query reads in a batch.
    """

    def __init__(self, folder: Path, *, url: str, files_per_batch: int) -> None:
        self._log = folder / "job.log"
        self._command = [
            *(sys.executable, "-m", "redis_state.demo.job", "--folder", str(folder), "--url", url),
            *("--files-per-batch", str(files_per_batch)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the job on the state of an earlier run in the folder, if there is any."""
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONWARNINGS": "ignore",  # pandas warns of Spark's own code, for every aircraft
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # its end tells the job that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # so that `kill` reaches Spark's JVM
            )

    def running(self) -> bool:
        """Returns whether the job still runs.

        Raises:
            JobFailedError: The job ended with an error.
        """
        if self._process is None:
            return False
        status = self._process.poll()
        if status:
            last = self._log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise JobFailedError("\n".join([f"The job ended with status {status}:", *last]))
        return status is None

    def kill(self) -> None:
        """Sends SIGKILL to the whole group, with Spark's JVM; waits until it is gone."""
        if self._process is None:
            return
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
            self._process.wait()
            # The JVM is not a child of this process: it is gone when the group is. Where nobody
            # reaps orphans the group stays, so the wait has a limit.
            end_s = time.monotonic() + _GONE_S
            while time.monotonic() < end_s:
                os.killpg(group, 0)
                time.sleep(_POLL_S)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
