"""A private server for one test: started on a free loopback port, always stopped.

It is not `redis_state.EmbeddedRedis`, because tests do not judge the code by itself, and because
faults need more: kill, restart on the same port and folder, TLS, any option.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tests.support.tls import Certificates, make_certificates
from tests.support.waiting import await_end
from tools import servers

_HOST = "127.0.0.1"
_READY_POLLS_MAX = 6000
_READY_POLL_S = 0.005  # most servers answer after ten milliseconds
_STOP_S = 10
_STARTS_MAX = 5
# Options of several values, which Redis 6.2 wants as so many arguments.
_LISTS = frozenset({"replicaof", "save"})


class NoTlsError(RuntimeError):
    """The server program was built without TLS."""


def bytes_of(reply: object) -> bytes:
    """Narrows a reply of a test client to bytes; the types of redis-py allow more."""
    assert isinstance(reply, bytes)
    return reply


def hidden(command: str) -> str:
    """The name under which a server that lacks a command keeps it for the test."""
    return f"TEST-{command}"


_used_ports: set[int] = set()


def free_port() -> int:
    """Finds a port that this process has not handed out before.

    A client remembers for as long as its process lives what it knows of an address: its checks, its
    pools, that nobody answers. The system hands out a port again after some hundred servers.
    """
    while True:
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in _used_ports:
            _used_ports.add(port)
            return port


def _as_arguments(name: str, value: str) -> list[str]:
    return [f"--{name}", *(value.split() or [""] if name in _LISTS else [value])]


class RedisServer:
    """One server process and what is needed to reach it.

    Args:
        folder: Where an append-only file is kept, so that a restart finds the data; `None` keeps
            nothing beyond the process.
        password: What clients must send; `None` asks for nothing.
        maxmemory: As the server's option: bytes or `64mb`.
        tls: Serve TLS only, with a certificate made for this server (`certificates`), or with one
            that several servers share.
        options: More of the server's options, as `{"maxmemory-policy": "allkeys-lru"}`.
        lacks: Commands that it does not know under their names.
        unix_socket: Listen on `socket` too.
        old_program: Program of a server below Redis 6; `None` means `program`.
        program: `None` means that of `tools.servers.of_this_machine`.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        password: str | None = None,
        maxmemory: int | str | None = None,
        tls: bool | Certificates = False,
        options: dict[str, str] | None = None,
        lacks: Sequence[str] = (),
        unix_socket: bool = False,
        old_program: str | None = None,
        program: str | None = None,
    ) -> None:
        self._is_old = old_program is not None
        program = old_program or program or servers.of_this_machine()
        if program is None:
            raise RuntimeError(
                "neither valkey-server nor redis-server is on PATH: run `make redis`"
            )
        self._program = program
        self._scratch = Path(tempfile.mkdtemp(prefix="rs-redis-"))
        self._folder = folder or self._scratch
        self._keeps = folder is not None
        self._maxmemory = maxmemory
        self._options = dict(options or {})
        self._lacks = lacks
        if unix_socket:
            self._options["unixsocket"] = str(self.socket)
        self._process: subprocess.Popen[bytes] | None = None
        self.password = password
        self.certificates = make_certificates(self._scratch) if tls is True else tls or None
        self.host = _HOST
        self.port = free_port()

    @property
    def url(self) -> str:
        """Address without user name and password, as redis-state takes it."""
        scheme = "rediss" if self.certificates else "redis"
        return f"{scheme}://{self.host}:{self.port}/0"

    @property
    def log(self) -> str:
        """Log of the server so far."""
        path = self._scratch / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def socket(self) -> Path:
        """The unix socket that it listens on beside its port, if it was asked to."""
        return self._scratch / "server.sock"

    def pause(self) -> None:
        """Stops the process where it is; its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the suspended process."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, **options: object) -> redis.Redis:
        """A new client that answers bytes; the caller closes it."""
        settings: dict[str, object] = {
            "host": self.host,
            "port": self.port,
            "password": self.password,
            "socket_timeout": 10,
        }
        if self._is_old:
            settings["protocol"] = 2  # it does not know HELLO
        if self.certificates:
            settings |= {"ssl": True, "ssl_ca_certs": str(self.certificates.authority)}
        return redis.Redis(**(settings | options))  # type: ignore[arg-type]  # kwargs differ in type

    def start(self) -> RedisServer:
        """Starts the process and waits until it has loaded its data and answers."""
        for _ in range(_STARTS_MAX):
            self._spawn()
            if self._is_ready():
                return self
            if "Address already in use" not in self.log:
                break
            self.port = free_port()
        text = self.log
        self.stop()
        if "'tls-port" in text and "Bad directive" in text:
            raise NoTlsError(f"{self._program} was built without TLS")
        raise RuntimeError(f"the server did not start:\n{text}")

    def kill(self) -> None:
        """Ends the process at once, as a crash would."""
        self._end(force=True)

    def shutdown(self) -> None:
        """Ends the process in order; the folder stays."""
        self._end(force=False)

    def restart(self, *, loaded: bool = True, **options: str) -> None:
        """Starts again on the same port and folder after `kill`, `shutdown` or a crash.

        Args:
            loaded: Whether to wait until all data is loaded, or only until the server answers.
            options: Further ones of the server's, with `_` for `-`.
        """
        self._options |= {name.replace("_", "-"): value for name, value in options.items()}
        self._spawn()
        if not self._is_ready(loaded=loaded):
            raise RuntimeError(f"the server did not start again:\n{self.log}")

    def fill_disk(self, *, room: int = 0) -> None:
        """Limits every file to the size of the largest file of the folder, plus `room` bytes."""
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        self._limit_files(room + max((path.stat().st_size for path in files), default=0))

    def clear_disk(self) -> None:
        """Removes the limit on file sizes."""
        self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def stop(self) -> None:
        """Ends the process, whatever its state, and removes what it left behind."""
        self._end(force=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self) -> None:
        with (self._scratch / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self._arguments()],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A file that may not grow is then an error, as a full disk is, and no signal.
                restore_signals=False,
            )

    def _arguments(self) -> list[str]:
        options = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(self._folder),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._keeps else "no",
        }
        if self.password is not None:
            options["requirepass"] = self.password
        if self._maxmemory is not None:
            options["maxmemory"] = str(self._maxmemory)
        if self.certificates:
            options |= {
                "port": "0",
                "tls-port": str(self.port),
                "tls-cert-file": str(self.certificates.certificate),
                "tls-key-file": str(self.certificates.key),
                "tls-ca-cert-file": str(self.certificates.authority),
                "tls-auth-clients": "no",
            }
        options |= self._options
        renamed = [["--rename-command", name, hidden(name)] for name in self._lacks]
        return [
            part
            for several in (*(_as_arguments(*option) for option in options.items()), *renamed)
            for part in several
        ]

    def _is_ready(self, *, loaded: bool = True) -> bool:
        assert self._process is not None
        retry = Retry(ConstantBackoff(_READY_POLL_S), 0)
        with self.client(retry=retry) as client:
            for _ in range(_READY_POLLS_MAX):
                try:
                    client.ping()
                    # Another lane's server may have taken the port since it was found free.
                    if self._id_of(client) == self._process.pid:
                        return True
                except redis.BusyLoadingError:
                    if not loaded:
                        return True
                except (redis.ConnectionError, redis.TimeoutError):
                    pass
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_READY_POLL_S)
                    return False
        return False

    def _id_of(self, client: redis.Redis) -> int:
        name = hidden("INFO") if "INFO" in self._lacks else "INFO"
        reply = client.execute_command(name.encode(), "server")  # type: ignore[no-untyped-call]
        info = bytes_of(reply).decode()
        return int(info.partition("process_id:")[2].split()[0])

    def _end(self, *, force: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if force:
            process.kill()
        else:
            process.terminate()
        await_end(process, _STOP_S)
