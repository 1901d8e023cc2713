"""Daemon thread that reports the instances of a process and keeps them alive.

No caller waits for the thread: a report goes into a bounded queue. No state depends on it either:
an instance that is not renewed expires after its ttl, and a commit is decided by the fence, not by
this table.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.clock import SYSTEM, Clock
from redis_state.errors import FormatError, RedisStateError
from redis_state.ids import PartitionId
from redis_state.process import STOP_S, BackgroundThread, tell_after_fork
from redis_state.protocol import is_run
from redis_state.protocol.instances import (
    BEATS_A_TTL,
    TTL_MS,
    Instance,
    decode_instance,
    heartbeat_commands,
    leave,
    place_commands,
    report_command,
    totals_commands,
)

QUEUE_MAX = 4096
SETTLE_S = 1.0
_LOG = logging.getLogger("redis_state.coordinator")

TotalsSource = Callable[[], Mapping[str, int]]
"""Called on the heartbeat's thread; returns a store's counters (docs/format.md, section 9)."""

OnLost = Callable[[Instance | None], None]
"""Called on the heartbeat's thread with the new instance; ``None`` if the run was deactivated."""


def ignore_loss(_found: Instance | None) -> None:
    """Does nothing about an instance that was replaced or deactivated."""


def uncounted() -> Mapping[str, int]:
    """Counters of a store that counts nothing."""
    return {}


@dataclass(slots=True)
class _ServedPartition:
    partition: Callable[[], PartitionId | None]
    owner: Hashable
    instance: Instance
    on_lost: OnLost
    keep_ms: int
    totals: TotalsSource
    confirmed_s: float = 0.0
    reported: bool = False


@dataclass(frozen=True, slots=True)
class _Withdraw:
    owner: Hashable


@dataclass(frozen=True, slots=True)
class _Forget:
    run_id: str


@dataclass(frozen=True, slots=True)
class _Settle:
    done: threading.Event


_Order = _ServedPartition | _Withdraw | _Forget | _Settle


class Heartbeat:
    """Keeps the instances of this process in the registry, by one pipeline each third of their ttl.

    The first report starts the thread. `stop` ends it for good, after its instances were removed.

    Args:
        ttl_ms: Expiry of an instance that is not renewed.
        queue_max: Number of reports that may wait; more are dropped, with a log line.
        threaded: ``False`` if the caller itself calls `tick`.
    """

    def __init__(
        self,
        client: Client,
        *,
        ttl_ms: int = TTL_MS,
        clock: Clock = SYSTEM,
        queue_max: int = QUEUE_MAX,
        threaded: bool = True,
    ) -> None:
        self._client = client
        self._ttl_ms = ttl_ms
        self._ttl_s = ttl_ms / 1000
        self._clock = clock
        self._queue_max = queue_max
        self._background = BackgroundThread(
            "heartbeat",
            self.tick,
            self._pause_s,
            what="a heartbeat",
            last=lambda: self._leave(list(self._owned)),
            threaded=threaded,
        )
        self._begin()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Empties the child's copy of the table: the instances belong to the parent."""
        self._begin()

    def _begin(self) -> None:
        self._orders: queue.Queue[_Order] = queue.Queue(self._queue_max)
        self._held: dict[PartitionId, _ServedPartition] = {}
        self._owned: dict[Hashable, PartitionId] = {}
        # Reports for checkpoints that do not exist yet.
        self._early: dict[Hashable, _ServedPartition] = {}
        self._due_s = self._clock.monotonic_s() + self._ttl_s / BEATS_A_TTL

    @property
    def instances(self) -> Mapping[PartitionId, Instance]:
        """Returns the instances that are kept alive now."""
        return {id_: held.instance for id_, held in list(self._held.items())}

    def report(
        self,
        owner: Hashable,
        partition: Callable[[], PartitionId | None],
        instance: Instance,
        *,
        on_lost: OnLost = ignore_loss,
        keep_ms: int = 0,
        totals: TotalsSource = uncounted,
    ) -> None:
        """Enters an instance and keeps it alive; returns at once.

        Args:
            owner: Key for `withdraw`.
            partition: Called on the heartbeat's thread, again at each beat while it returns
                ``None``.
            on_lost: Called once when a newer instance has the partition, or the run was
                deactivated.
            keep_ms: Expiry of the keys of an ephemeral checkpoint; 0 for any other.
            totals: Returns the store's counters, sent with each report and heartbeat.
        """
        self._order(_ServedPartition(partition, owner, instance, on_lost, keep_ms, totals))

    def withdraw(self, owner: Hashable) -> None:
        """Removes an instance that was unloaded; returns at once."""
        self._order(_Withdraw(owner))

    def forget_run(self, run_id: str) -> None:
        """Stops renewing the instances of a run, which were removed; returns at once."""
        self._order(_Forget(run_id))

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Waits until earlier reports and withdrawals have been sent, or were lost."""
        if not self._background.is_running or self._background.is_current:
            return
        order = _Settle(threading.Event())
        if self._put(order):
            order.done.wait(timeout_s)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Removes all instances and ends the thread; waits at most `timeout_s`."""
        self._background.stop(timeout_s)

    def tick(self) -> None:
        """Carries out the queued orders, and renews the instances if due."""
        orders: list[_Order] = []
        while len(orders) < self._queue_max:
            try:
                orders.append(self._orders.get_nowait())
            except queue.Empty:
                break
        self._carry_out(orders)
        if self._clock.monotonic_s() >= self._due_s:
            self.beat()

    def beat(self) -> None:
        """Renews all instances now, in one round trip."""
        self._due_s = self._clock.monotonic_s() + self._ttl_s / BEATS_A_TTL
        for early in list(self._early.values()):
            self._enter(early)
        new = {id_: held for id_, held in self._held.items() if not held.reported}
        known = {id_: held.instance for id_, held in self._held.items() if held.reported}
        commands = heartbeat_commands(known, ttl_ms=self._ttl_ms)
        renewals = self._renewals()
        if not (new or commands or renewals):
            return
        reports = self._reports(new, self._held)
        try:
            replies = self._client.call("renewing instances", [*commands, *reports, *renewals])
        except RedisStateError as error:
            _LOG.warning("the heartbeat could not be sent; no state depends on it: %s", error)
            return
        for id_, reply in zip(known, replies, strict=False):
            self._judge(id_, reply)
        for id_ in new:
            self._confirm(id_)

    def _renewals(self) -> list[Command]:
        calls = [
            (keys.meta(id_), (str(held.keep_ms),))
            for id_, held in self._held.items()
            if held.keep_ms
        ]
        return script("renew").many(calls)

    def _reports(
        self,
        new: Mapping[PartitionId, _ServedPartition],
        counted: Mapping[PartitionId, _ServedPartition],
    ) -> list[Command]:
        """Returns the commands that register new instances, and publish places and totals."""
        commands = [
            report_command(at, one.instance, ttl_ms=self._ttl_ms) for at, one in new.items()
        ]
        found: dict[PartitionId, tuple[Instance, Mapping[str, int]]] = {}
        for id_, one in counted.items():
            try:
                counts = {str(name): int(count) for name, count in one.totals().items()}
            except Exception:  # noqa: BLE001  # foreign code; the instances have to live on
                _LOG.exception("the counters of %s could not be read", id_)
                continue
            if counts:
                found[id_] = one.instance, counts
        return [*commands, *place_commands(counted), *totals_commands(found)]

    def _carry_out(self, orders: list[_Order]) -> None:
        try:
            self._carry_out_all(orders)
        finally:
            for order in orders:
                if isinstance(order, _Settle):
                    order.done.set()

    def _carry_out_all(self, orders: list[_Order]) -> None:
        for order in orders:
            if isinstance(order, _ServedPartition):
                self._enter(order)
            elif isinstance(order, _Withdraw):
                self._leave([order.owner])
            elif isinstance(order, _Forget):
                self._forget(order.run_id)
        fresh = {id_: held for id_, held in self._held.items() if not held.reported}
        if not fresh:
            return
        try:
            self._client.call("reporting instances", self._reports(fresh, fresh))
        except RedisStateError as error:
            _LOG.warning("instances could not be reported; no state depends on it: %s", error)
            return
        for id_, held in fresh.items():
            self._confirm(id_)
            _LOG.debug("reported %s as the instance of %s", held.instance, id_)

    def _enter(self, order: _ServedPartition) -> None:
        try:
            id_ = order.partition()
        except RedisStateError as error:
            _LOG.warning("%s is not reported: %s", order.owner, error)
            return
        if id_ is None:
            if order.owner not in self._early and len(self._early) < self._queue_max:
                _LOG.info("%s is reported once its checkpoint exists", order.owner)
                self._early[order.owner] = order
            return
        self._early.pop(order.owner, None)
        older = self._held.get(id_)
        order.confirmed_s = self._clock.monotonic_s()
        self._held[id_] = order
        if older is not None and older.instance != order.instance:
            self._owned = {owner: at for owner, at in self._owned.items() if at != id_}
            self._tell(id_, older, order.instance)
        self._owned[order.owner] = id_

    def _leave(self, owners: list[Hashable]) -> None:
        for owner in owners:
            self._early.pop(owner, None)
        ids = [self._owned.pop(owner) for owner in owners if owner in self._owned]
        gone = {
            id_: held.instance for id_ in ids if (held := self._held.pop(id_, None)) is not None
        }
        if not gone:
            return
        try:
            leave(self._client, gone)
        except RedisStateError as error:
            _LOG.warning("instances stay listed until they expire: %s", error)
            return
        _LOG.debug("withdrew %d instances", len(gone))

    def _forget(self, run_id: str) -> None:
        self._early = {
            owner: one
            for owner, one in self._early.items()
            if not is_run(one.instance.run_id, run_id)
        }
        of_run = {
            id_: one for id_, one in self._held.items() if is_run(one.instance.run_id, run_id)
        }
        # The removal may have come before a report that was still on its way, so remove again.
        self._leave([owner for owner, id_ in self._owned.items() if id_ in of_run])
        for id_, held in of_run.items():
            self._drop(id_)
            self._tell(id_, held, None)

    def _judge(self, id_: PartitionId, reply: object) -> None:
        if reply == [b"OK"]:
            self._confirm(id_)
            return
        held = self._drop(id_)
        found: Instance | None = None
        if isinstance(reply, list) and len(reply) > 1:
            try:
                found = decode_instance(reply[1])
            except FormatError as error:
                _LOG.warning("the place of %s was overwritten: %s", id_, error)
        if held is not None:
            self._tell(id_, held, found)

    def _confirm(self, id_: PartitionId) -> None:
        held = self._held.get(id_)
        if held is None:
            return
        now = self._clock.monotonic_s()
        silent_s = now - held.confirmed_s
        if held.reported and silent_s > self._ttl_s:
            _LOG.info("%s was not renewed for %.0f s and may have been missed", id_, silent_s)
        held.reported, held.confirmed_s = True, now

    def _drop(self, id_: PartitionId) -> _ServedPartition | None:
        self._owned = {owner: at for owner, at in self._owned.items() if at != id_}
        return self._held.pop(id_, None)

    def _tell(self, id_: PartitionId, held: _ServedPartition, found: Instance | None) -> None:
        _LOG.debug("%s is served by %s now, not by %s", id_, found or "nobody", held.instance)
        try:
            held.on_lost(found)
        except Exception:  # noqa: BLE001  # the callback is foreign code; the other instances live on
            _LOG.exception("unloading %s failed", id_)

    def _order(self, order: _Order) -> None:
        self._background.start()
        if not self._put(order):
            _LOG.warning("the heartbeat's queue is full; dropped %s", order)

    def _put(self, order: _Order) -> bool:
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            return False
        self._background.wake()
        return True

    def _pause_s(self) -> float | None:
        idle = not self._held and not self._early
        return None if idle else max(0.0, self._due_s - self._clock.monotonic_s())
