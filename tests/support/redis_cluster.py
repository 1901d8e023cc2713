"""A cluster on loopback whose slots can be moved: always stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

from redis.crc import key_slot

from tests.support.redis_server import RedisServer, free_port
from tests.support.tls import Certificates
from tests.support.waiting import wait_until

SLOTS = 16384
_BUS_OFFSET = 10_000
_NODE_TIMEOUT_MS = 1500


class RedisCluster:
    """Masters that share all slots evenly, each with its replicas.

    Args:
        tls: Certificates, for nodes that speak TLS only, with each other too.

    Attributes:
        masters: As started; a fail-over makes one of the replicas a master.
    """

    def __init__(
        self, *, masters: int = 2, replicas: int = 0, tls: Certificates | None = None
    ) -> None:
        self._scheme = "rediss" if tls else "redis"
        self.masters = [_node(tls) for _ in range(masters)]
        # One list a master.
        self.replicas = [[_node(tls) for _ in range(replicas)] for _ in range(masters)]
        self._ids: dict[int, str] = {}

    @property
    def nodes(self) -> list[RedisServer]:
        return [*self.masters, *(node for group in self.replicas for node in group)]

    @property
    def url(self) -> str:
        """All that were started as masters: one of them that lives is enough to find the others."""
        nodes = ",".join(f"127.0.0.1:{node.port}" for node in self.masters)
        return f"{self._scheme}+cluster://{nodes}"

    def owner_of(self, key: str) -> int:
        """Index of the master to which the slot of a key was given at the start."""
        return key_slot(key.encode()) * len(self.masters) // SLOTS

    def begin_migration(self, key: str, *, to: int) -> None:
        """Opens the migration of the key's slot; keys stay where they are until `move_keys`."""
        slot, source = key_slot(key.encode()), self.owner_of(key)
        _ask(self.masters[to], "SETSLOT", slot, "IMPORTING", self._id(self.masters[source]))
        _ask(self.masters[source], "SETSLOT", slot, "MIGRATING", self._id(self.masters[to]))

    def move_keys(self, keys: Sequence[str | bytes], *, source: int, to: int) -> None:
        with self.masters[source].client() as client:
            port = self.masters[to].port
            client.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def end_migration(self, key: str, *, to: int) -> None:
        slot = key_slot(key.encode())
        for node in (self.masters[to], *self.masters):
            _ask(node, "SETSLOT", slot, "NODE", self._id(self.masters[to]))

    def move_slot(self, key: str, *, to: int) -> None:
        """Moves the slot of a key with all that it holds."""
        slot, source = key_slot(key.encode()), self.owner_of(key)
        self.begin_migration(key, to=to)
        while keys := _ask(self.masters[source], "GETKEYSINSLOT", slot, 100):
            self.move_keys(keys, source=source, to=to)
        self.end_migration(key, to=to)

    def keys(self) -> list[bytes]:
        """All keys of all masters that were started as such and live."""
        found: list[bytes] = []
        for node in self.masters:
            with node.client() as client:
                found += client.scan_iter(count=1000)
        return found

    def start(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            _ask(node, "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.masters):
            mine = [s for s in range(SLOTS) if s * len(self.masters) // SLOTS == number]
            _ask(node, "ADDSLOTS", *mine)
        for node in self.nodes[1:]:
            _ask(self.nodes[0], "MEET", "127.0.0.1", node.port)
        wait_until(lambda: all(map(self._is_joined, self.nodes)), "the nodes to find each other")
        for master, group in zip(self.masters, self.replicas, strict=True):
            for node in group:
                _ask(node, "REPLICATE", self._id(master))
        self.await_replicas()
        return self

    def await_replicas(self) -> None:
        """Until each replica has what its master has now.

        `WAIT` on a new connection would not do: since Redis 7.2 it is about what that connection
        wrote, which is nothing.
        """
        for master, group in zip(self.masters, self.replicas, strict=True):
            offset = _replication(master)["master_repl_offset"]
            for node in group:
                wait_until(partial(_has, node, offset), "a replica to catch up")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> RedisCluster:
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

    def _is_joined(self, node: RedisServer) -> bool:
        info = _ask(node, "INFO").decode()
        return (
            "cluster_state:ok" in info
            and f"cluster_known_nodes:{len(self.nodes)}" in info
            and f"cluster_size:{len(self.masters)}" in info
        )

    def _id(self, node: RedisServer) -> str:
        if node.port not in self._ids:
            self._ids[node.port] = _ask(node, "MYID").decode()
        return self._ids[node.port]


def _node(tls: Certificates | None) -> RedisServer:
    node = RedisServer(
        tls=tls or False,
        options={
            **({"tls-cluster": "yes", "tls-replication": "yes"} if tls else {}),
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(_NODE_TIMEOUT_MS),
            "cluster-require-full-coverage": "no",
            "repl-ping-replica-period": "1",
            "repl-diskless-sync-delay": "0",
        },
    )
    # The bus listens that much higher.
    while node.port + _BUS_OFFSET > 65535:
        node.port = free_port()
    return node


def _ask(node: RedisServer, *words: Any) -> Any:
    with node.client() as client:
        return client.execute_command("CLUSTER", *words)


def _has(node: RedisServer, offset: int) -> bool:
    found = _replication(node)
    return bool(found.get("master_link_status") == "up" and found["slave_repl_offset"] >= offset)


def _replication(node: RedisServer) -> dict[str, Any]:
    with node.client() as client:
        found: dict[str, Any] = client.info("replication")
    return found
