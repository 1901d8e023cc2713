"""Resources shared by schedules: a server, a JVM, reusable processes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.transport import Transport
from redis_state.cli.main import build_parser
from redis_state.errors import RedisStateError
from redis_state.maintain.activity import look
from tests.faults.oracle.direct import DirectTransport
from tests.faults.system.jvm import Jvm
from tests.support.redis_server import RedisServer

_LOOKS = keys.looks(tenant="")
_TIME = re.compile(rb"(?<![0-9A-Za-z])1\d{12}(?![0-9A-Za-z])")


class Lab:
    """One server and one JVM.

    Attributes:
        counters: What all schedules met.
        jumps: How often time went by.
        jumped_ms: How much time went by.
    """

    def __init__(self, mutant: str | None = None) -> None:
        self.counters: Counter[str] = Counter()
        self.jumps = 0
        self.jumped_ms = 0
        self._server = RedisServer(unix_socket=True).start()
        self.url = self._server.url
        self._direct = DirectTransport(self._server.socket)
        self.jvm = Jvm(self.url, self._direct, mutant)
        self._idle: list[str] = []
        self._parser = build_parser()
        # A folder in memory, where there is one: Spark's logs are written with care.
        fast = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="rs-", dir=fast if fast.is_dir() else None))

    def fresh_folder(self) -> Path:
        """An empty folder; all that schedules before left is gone, in the server too."""
        self.jvm.story.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._direct.exchange([("FLUSHDB",)])
        return self._folder

    def take_process(self) -> str:
        """A process that does nothing yet."""
        self.counters["processes"] += 1
        return self._idle.pop() if self._idle else self.jvm.start_process()

    def give_back(self, name: str) -> None:
        """Returns a process that has closed everything to the pool."""
        self._idle.append(name)

    def redis(self, *words: str | bytes) -> Any:
        """The answer to one command."""
        return self._direct.exchange([words])[0]

    @property
    def server(self) -> Transport:
        """The server, past everything that the code does."""
        return self._direct

    def key_names(self) -> list[bytes]:
        """Names of all keys."""
        return sorted(self.redis("KEYS", "*"))

    def command(self, *words: str) -> tuple[int, str]:
        """Exit status and output of `redis-state`."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            # As its `main` does; to make the parser anew costs more than most commands.
            arguments = self._parser.parse_args([*words, "--url", self.url])
            try:
                status = arguments.run(arguments)
            except RedisStateError as error:
                status = 1
                print(error)
        self.jvm.story.append(f"redis-state {' '.join(words)} -> {status} {out.getvalue()}")
        return status, out.getvalue()

    def jump(self, by_ms: int, *, without: bytes = b"\0") -> None:
        """Advances the time: notes become older, and keys have less time to live.

        Args:
            without: Keys with this in their names are renewed all the time.
        """
        self.jvm.story.append(f"{by_ms} ms go by")
        self.jumps += 1
        self.jumped_ms += by_ms
        noted = self._noted()
        same = [gen for gen, mark in noted.items() if mark == self._mark(gen)]
        for name in self.key_names():
            left = self.redis("PTTL", name) if without not in name else -1
            if 0 <= left <= by_ms:
                self.redis("UNLINK", name)
                continue
            if left > 0:
                self.redis("PEXPIRE", name, str(left - by_ms))
            if name[-2:] in (b":c", b":q", b":m", b":v"):
                self._age(name, by_ms)

        for gen in same:
            old, new = noted[gen], self._mark(gen)
            note = self.redis("HGET", _LOOKS, gen).decode().replace(old, new)
            self.redis("HSET", _LOOKS, gen, note)

    def _noted(self) -> dict[str, str]:
        """Notes of the poll for vanished checkpoints, by gen; each holds a digest of times, too."""
        raw = self.redis("HGETALL", _LOOKS)
        notes = {gen.decode(): json.loads(note) for gen, note in raw.items()}
        # Those of forks that are gone have no mark.
        return {gen: note["mark"] for gen, note in notes.items() if "mark" in note}

    def _mark(self, gen: str) -> str:
        with contextlib.closing(Client(options.parse({"url": self.url}))) as client:
            return look(client, gen).mark

    def _age(self, name: bytes, by_ms: int) -> None:
        raw = self.redis("HGETALL", name)
        pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
        for field, value in pairs:
            older = _TIME.sub(lambda at: b"%d" % (int(at[0]) - by_ms), value)
            if older != value:
                self.redis("HSET", name, field, older)

    def close(self) -> None:
        """End all of it."""
        self.jvm.close()
        self._direct.close()
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
