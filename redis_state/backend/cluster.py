"""Transport to a Redis Cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from redis_state.backend.replies import ReplyClass, class_of, failure
from redis_state.backend.routing import Together, owners, redirect, split, taught, texts_of
from redis_state.backend.script import Command, touches_undeclared_keys
from redis_state.backend.transport import (
    NoServerError,
    ReplacedError,
    ServerTransport,
    Transport,
    error_word,
    message_of,
)
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.process import tell_after_fork
from redis_state.url import Address, ClusterEndpoint

_REDIRECTS_MAX = 5
_OUTDATED = frozenset({"CLUSTERDOWN", "READONLY"})
_RIGHTS = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})


@dataclass(frozen=True, slots=True)
class _ClusterStep:
    part: Together
    to: Address
    asking: bool = False


class ClusterTransport:
    """Sends each command to the owner of its slot, a transaction as a whole.

    Follows `MOVED` and `ASK` at once, a few times. Other transient errors are returned to the
    caller, which waits and repeats. Safe to share between threads: no lock is held during a
    request.
    """

    def __init__(self, config: Config, location: ClusterEndpoint) -> None:
        self._config = config
        self._location = location
        self._lock = threading.Lock()
        tell_after_fork(self)
        self._nodes: dict[Address, ServerTransport] = {}
        # Replaced as a whole, because threads read it without the lock; `None` if it must be
        # asked for.
        self._owners: dict[int, Address] | None = None
        self._last_owners: Mapping[int, Address] = {}

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Implements `Transport.exchange`, on all nodes concerned."""
        replies: list[Any] = [None] * len(commands)
        texts = texts_of(commands)
        try:
            steps = [_ClusterStep(part, self._owner(part.slot)) for part in split(commands)]
            for redirects in range(_REDIRECTS_MAX + 1):
                follow = redirects < _REDIRECTS_MAX
                steps = self._round(steps, replies, texts if follow else None)
        except redis.RedisError:
            self._owners = None
            raise
        if any(map(_is_outdated, replies)):
            self._owners = None
        return replies

    def parts(self) -> Sequence[Transport]:
        """Returns a transport for each master."""
        return [_Master(self, address) for address in dict.fromkeys(self._table().values())]

    def exchange_with(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands to one master, whatever their keys.

        Raises:
            ReplacedError: The table of nodes was reloaded, and the server is no longer a master.
        """
        if self._owners is None and address not in set(self._table().values()):
            raise ReplacedError(f"{address} is no longer a master of the cluster")
        try:
            return self._node(address).exchange(commands)
        except redis.RedisError:
            self._owners = None
            raise

    def owner_known(self, slot: int | None) -> Address | None:
        """Implements `Transport.owner_known`, by the last table."""
        return None if slot is None else self._last_owners.get(slot)

    def after_fork(self) -> None:
        """Replaces the lock, which a thread of the parent may have held at the fork."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.close()

    def _round(
        self,
        steps: Sequence[_ClusterStep],
        replies: list[Any],
        texts: Mapping[str, str | bytes] | None,
    ) -> list[_ClusterStep]:
        """Sends each step once, stores final replies, and returns the steps to send next.

        Args:
            texts: Texts of scripts by hash; ``None`` stores every reply, without further steps.
        """
        further: list[_ClusterStep] = []
        for to in dict.fromkeys(step.to for step in steps):
            here = [step for step in steps if step.to == to]
            sent: list[Command] = []
            for step in here:
                # ASKING holds for the next command, or for the whole transaction that starts with
                # it.
                sent += [("ASKING",), *step.part.commands] if step.asking else step.part.commands
            answers = iter(self._node(to).exchange(sent))
            for step in here:
                if step.asking:
                    next(answers)
                own = [next(answers) for _ in step.part.commands]
                onward = None if texts is None else self._onward(step, own, texts)
                if onward is not None:
                    further.append(onward)
                else:
                    own = [_explained(reply, step) for reply in own]
                    replies[step.part.at : step.part.at + len(own)] = own
        return further

    def _onward(
        self, step: _ClusterStep, replies: Sequence[Any], texts: Mapping[str, str | bytes]
    ) -> _ClusterStep | None:
        found = redirect(replies, step.to)
        waits = any(map(touches_undeclared_keys, step.part.commands))
        if found is not None and not (found.ask and waits):
            # Read once, because another thread may set it to None at any time.
            table = self._owners
            if not found.ask and table is not None:
                self._owners = self._last_owners = {**table, found.slot: found.to}
            return _ClusterStep(step.part, found.to, asking=found.ask)
        if any(error_word(reply) == "NOSCRIPT" for reply in replies):
            again = taught(step.part, texts)
            if again != step.part:
                return _ClusterStep(again, step.to, step.asking)
        return None

    def _owner(self, slot: int | None) -> Address:
        table = self._table()
        found = next(iter(table.values()), None) if slot is None else table.get(slot)
        if found is None:
            what = "any slot" if slot is None else f"slot {slot}"
            raise NoServerError(f"no node of the cluster serves {what}")
        return found

    def _table(self) -> Mapping[int, Address]:
        table = self._owners
        if table is None:
            self._owners = self._last_owners = table = self._ask_all()
            self._retire(set(table.values()))
        return table

    def _ask_all(self) -> dict[int, Address]:
        # Any node can answer. Nodes known from before may be the only ones that are left.
        with self._lock:
            known = list(dict.fromkeys([*self._location.nodes, *self._nodes]))
        failed: redis.RedisError | None = None
        for address in random.sample(known, len(known)):
            try:
                return self._ask(address)
            except redis.AuthenticationError:
                raise
            except redis.RedisError as error:
                failed = error
        raise NoServerError(f"no node of the cluster answered ({failed})") from failed

    def _ask(self, address: Address) -> dict[int, Address]:
        (reply,) = self._node(address).exchange([("CLUSTER", "SLOTS")])
        if not isinstance(reply, redis.RedisError):
            return owners(reply, address)
        attempted = f"asking {address} for the nodes of the cluster"
        if "cluster support disabled" in str(reply):
            raise ConfigError(
                attempted,
                found="it is not a node of a cluster",
                advice="Use a redis:// URL for one server.",
            )
        if error_word(reply) in _RIGHTS or class_of(message_of(reply)) is ReplyClass.LACKING:
            raise failure(attempted, message_of(reply), "CLUSTER")
        raise NoServerError(str(reply))

    def _retire(self, wanted: set[Address]) -> None:
        """Closes the connections to nodes that left the cluster or became replicas."""
        with self._lock:
            gone = [self._nodes.pop(one) for one in list(self._nodes) if one not in wanted]
        for node in gone:
            node.close()

    def _node(self, address: Address) -> ServerTransport:
        with self._lock:
            if address not in self._nodes:
                self._nodes[address] = ServerTransport(self._config, address)
            return self._nodes[address]


class _Master:
    """Master of a cluster, on the connections of the cluster."""

    def __init__(self, cluster: ClusterTransport, address: Address) -> None:
        self._cluster = cluster
        self._address = address

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        return self._cluster.exchange_with(self._address, commands)

    def parts(self) -> Sequence[Transport]:
        return [self]

    def owner_known(self, _slot: int | None) -> None:
        """Implements `Transport.owner_known`."""
        return

    def close(self) -> None:
        """Does nothing: the cluster owns the connections."""


def _explained(reply: Any, step: _ClusterStep) -> Any:
    if error_word(reply) != "TRYAGAIN":
        return reply
    role = "importing" if step.asking else "asked"
    return redis.exceptions.TryAgainError(f"{reply} (slot {step.part.slot}, {role} node {step.to})")


def _is_outdated(reply: object) -> bool:
    if isinstance(reply, list):
        return any(error_word(item) in _OUTDATED for item in reply)
    return error_word(reply) in _OUTDATED
