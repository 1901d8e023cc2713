"""A master with replicas and a sentinel that watches them: on loopback, always stopped."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import redis

from tests.support.redis_server import RedisServer, free_port
from tests.support.tls import Certificates
from tests.support.waiting import wait_until
from tools import servers

SERVICE = "state"
_DOWN_AFTER_MS = 1000


class SentinelSet:
    """One sentinel is enough here: it alone is the quorum.

    Args:
        tls: Certificates, for servers and a sentinel that speak TLS only.

    Attributes:
        servers: The first was started as the master.
    """

    def __init__(
        self, *, replicas: int = 1, password: str | None = None, tls: Certificates | None = None
    ) -> None:
        # A replica is served when it asks; the default is to wait for more of them.
        auth = {"repl-diskless-sync-delay": "0"}
        if password is not None:
            auth["masterauth"] = password
        if tls is not None:
            auth["tls-replication"] = "yes"
        self.servers = [RedisServer(password=password, tls=tls or False, options=auth)]
        for _ in range(replicas):
            follow = {"replicaof": f"127.0.0.1 {self.servers[0].port}", **auth}
            self.servers.append(RedisServer(password=password, tls=tls or False, options=follow))
        self.port = free_port()
        self._password = password
        self._tls = tls
        self._folder = Path(tempfile.mkdtemp(prefix="rs-sentinel-"))
        self._sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of database 0, as redis-state takes it."""
        scheme = "rediss" if self._tls else "redis"
        return f"{scheme}+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"

    def fail_over(self) -> None:
        """Asks the sentinel to make a replica the master, which stays up as a replica."""
        with self._asking() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def await_replicas(self) -> None:
        """Until each replica has all data of the master and the sentinel knows it."""
        wait_until(self._knows_all, "the sentinel to know all replicas")

    def await_roles(self, *roles: bytes) -> None:
        """Until the servers are what is given for each: `master` or `slave`."""
        wait_until(lambda: self.roles() == list(roles), "the servers to change their roles")

    def roles(self) -> list[bytes]:
        """Role that each server reports: `master` or `slave`."""
        found = []
        for server in self.servers:
            with server.client() as client:
                found.append(client.role()[0])
        return found

    def start(self) -> SentinelSet:
        for server in self.servers:
            server.start()
        self._start_sentinel()
        self.await_replicas()
        return self

    def stop(self) -> None:
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        for server in self.servers:
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> SentinelSet:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_sentinel(self) -> None:
        # A sentinel rewrites the file that it is started with.
        config = self._folder / "sentinel.conf"
        lines = [
            *self._listening(),
            "bind 127.0.0.1",
            f"dir {self._folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}",
        ]
        if self._password is not None:
            lines.append(f"sentinel auth-pass {SERVICE} {self._password}")
        config.write_text("\n".join(lines) + "\n")
        program = servers.of_this_machine()
        assert program is not None
        with (self._folder / "sentinel.log").open("wb") as log:
            self._sentinel = subprocess.Popen(
                [program, str(config), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _listening(self) -> list[str]:
        if self._tls is None:
            return [f"port {self.port}"]
        return [
            "port 0",
            f"tls-port {self.port}",
            f"tls-cert-file {self._tls.certificate}",
            f"tls-key-file {self._tls.key}",
            f"tls-ca-cert-file {self._tls.authority}",
            "tls-auth-clients no",
            "tls-replication yes",
        ]

    def _asking(self) -> redis.Redis:
        authority = None if self._tls is None else str(self._tls.authority)
        return redis.Redis(
            "127.0.0.1",
            self.port,
            socket_timeout=10,
            protocol=2,
            ssl=authority is not None,
            ssl_ca_certs=authority,
        )

    def _knows_all(self) -> bool:
        with suppress(redis.ConnectionError), self._asking() as client:
            flat = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
            states = [dict(zip(one[::2], one[1::2], strict=True)) for one in flat]
            ready = [one for one in states if one[b"master-link-status"] == b"ok"]
            return len(ready) == len(self.servers) - 1
        return False
