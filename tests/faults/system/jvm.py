"""The JVM that plays Spark's processes (`SystemActor`), and the server's users by which it does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from redis_state.backend.transport import Transport
from tools.jvm import ROOT, SHORT_LIVED, java_command

_MAIN = "org.apache.spark.sql.redisstate.system.SystemActor"
_RIGHTS = ("on", ">x", "~*", "&*", "+@all")


class SaidError(Exception):
    """A command that failed: the kind of the error, and what it told.

    Attributes:
        kind: As docs/errors.md names it, else the class of the exception.
    """

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind
        self.told = told


class Jvm:
    """Processes of the JVM. Each has a user of the server, without whom it is as good as dead.

    Attributes:
        story: What was told and answered in this schedule.

    Args:
        mutant: A folder of classes and scripts that take the place of the adapter's.
    """

    def __init__(self, url: str, server: Transport, mutant: str | None = None) -> None:
        jars = ROOT / ".venv" / "pyspark-jars"
        command = [*java_command("spark-4.3", jars, heap="1g"), _MAIN, url, mutant or "-"]
        command[1:1] = [*SHORT_LIVED, "-Xverify:none"]
        self._server = server
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._names = 0
        self.story: list[str] = []
        self._answer()

    def start_process(self) -> str:
        """The name of a new process."""
        self._names += 1
        name = f"p{self._names}"
        self._server.exchange([("ACL", "SETUSER", name, *_RIGHTS)])
        self.tell("process", name)
        return name

    def kill_process(self, name: str) -> None:
        """Nothing that it does from now on has an effect, and nobody is told."""
        self._server.exchange([("ACL", "DELUSER", name)])
        self.tell("kill", name)

    def connections(self) -> dict[str, int]:
        """Number of connections of each process."""
        (raw,) = self._server.exchange([("CLIENT", "LIST")])
        found: dict[str, int] = {}
        for line in _lines(raw):
            user = line.partition("user=")[2].partition(" ")[0]
            found[user] = found.get(user, 0) + 1
        return found

    def run(self, name: str, *words: object, thread: str = "main", pause: str = "-") -> str | None:
        """Runs a command on a thread of a process; `None` if it was held at the point `pause`.

        Raises:
            SaidError: It failed.
        """
        return self.tell("run", name, thread, pause, *words)

    def proceed(self, name: str, thread: str = "main") -> str | None:
        """Resumes a held thread and returns its answer."""
        return self.tell("resume", name, thread)

    def tell(self, *words: object) -> str | None:
        """Sends a command and returns its answer; `None` if it was held."""
        stdin = self._process.stdin
        assert stdin is not None
        line = " ".join(map(str, words))
        stdin.write(f"{line}\n")
        stdin.flush()
        try:
            said = self._answer()
        except SaidError as error:
            self.story.append(f"{line} -> {error}")
            raise
        self.story.append(f"{line} -> {said}")
        return said

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str | None:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the JVM ended with {self._process.wait()}")
        status, _, rest = line.rstrip("\n").partition(" ")
        if status == "error":
            kind, _, told = rest.partition(" ")
            raise SaidError(kind, told)
        return None if status == "paused" else rest


def _lines(raw: object) -> Sequence[str]:
    if isinstance(raw, bytes):
        return [line for line in raw.decode().splitlines() if line]
    assert isinstance(raw, list)
    return [" ".join(f"{k}={v}" for k, v in one.items()) for one in raw]
