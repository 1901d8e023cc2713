"""Limits for the state of a query, and for all state under its key prefix.

Counts the segments that manifests name, like `redis-state size`. The list of sizes has an entry for
each checkpoint (docs/format.md, section 9). A process measures its own checkpoint if that entry is
old. It checks after a commit, at most three times a minute, and takes at most a hundredth of its
time. `StateQuota` is the twin in the JVM.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.errors import FormatError, QuotaError, RedisStateError
from redis_state.format.entry import bytes_in
from redis_state.ids import PartitionId, is_gen
from redis_state.process import tell_after_fork
from redis_state.protocol.registry import counted_partitions, parse_operators
from redis_state.protocol.texts import is_number, parse_object

STATE_OPTION = "stateBytesMax"
PREFIX_OPTION = "prefixBytesMax"
WARN_SHARE = 0.8

_OWN_AGE_MS = 30_000
_REFUSAL_AGE_MS = 2_000
_OTHERS_AGE_MS = 600_000
_OTHERS_MAX_S = 1.0
_LOOK_EVERY_S = 20.0
_REST_SHARE = 100
_REST_S_MAX = 300.0
"""Upper bound of the pause, because the process may have been suspended during the measurement."""

_PARTITIONS_AT_ONCE = 64
_LARGEST_MAX = 3
_WHAT = "measuring a state"

log = logging.getLogger("redis_state.quota")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in bytes; ``None`` means no limit.

    Attributes:
        state: Limit of the checkpoint.
        prefix: Limit of all checkpoints with its key prefix.
    """

    state: int | None = None
    prefix: int | None = None

    def __bool__(self) -> bool:
        return self.state is not None or self.prefix is not None


@dataclass(frozen=True, slots=True)
class PartitionBytes:
    """A partition with its bytes."""

    operator: int
    store: str
    partition: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"operator {self.operator} partition {self.partition} store {self.store}: "
            f"{self.bytes} bytes"
        )


@dataclass(frozen=True, slots=True)
class Size:
    """An entry of the list of sizes.

    Attributes:
        at_ms: Time of the measurement, in ms since 1970 by the server's clock.
        state_max: The limit at that time; 0 for none, as for `prefix_max`.
    """

    at_ms: int = 0
    bytes: int = 0
    state_max: int = 0
    prefix_max: int = 0
    largest: tuple[PartitionBytes, ...] = ()

    def is_younger(self, age_ms: int, now_ms: int) -> bool:
        """Returns whether the entry is recent. A time in the future is from another server."""
        return 0 <= now_ms - self.at_ms < age_ms


def encode_size(size: Size) -> bytes:
    """Encodes an entry of the list."""
    entry = {
        "at": size.at_ms,
        "bytes": size.bytes,
        "stateMax": size.state_max,
        "prefixMax": size.prefix_max,
        "largest": [[one.operator, one.store, one.partition, one.bytes] for one in size.largest],
    }
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()


def parse_sizes(raw: Mapping[bytes, bytes]) -> dict[str, Size]:
    """Parses the list of sizes, by checkpoint; skips damaged entries, to be measured again."""
    found: dict[str, Size] = {}
    for gen, text in raw.items():
        size = _size(text)
        if size is not None:
            found[gen.decode("ascii", "replace")] = size
    return found


def _size(text: bytes | None) -> Size | None:
    try:
        entry = parse_object(text or b"")
        numbers = [entry[name] for name in ("at", "bytes", "stateMax", "prefixMax")]
        largest = tuple(_part(*one) for one in entry["largest"])
    except (ValueError, TypeError, LookupError):
        return None
    if not all(map(is_number, numbers)):
        return None
    at_ms, size, state_max, prefix_max = numbers
    return Size(at_ms, size, state_max, prefix_max, largest)


def _part(operator: object, store: object, partition: object, size: object) -> PartitionBytes:
    if not isinstance(store, str) or not all(map(is_number, (operator, partition, size))):
        raise ValueError("a partition of the list of sizes is malformed")
    return PartitionBytes(operator, store, partition, size)  # type: ignore[arg-type]  # as was looked


@dataclass(frozen=True, slots=True)
class _Near:
    option: str
    bytes: int
    max: int

    def __str__(self) -> str:
        of = "the state has" if self.option == STATE_OPTION else "all states of the key prefix have"
        return f"{of} {self.bytes} bytes in Redis, and the option {self.option} allows {self.max}"


@dataclass(frozen=True, slots=True)
class _UsedBytes:
    state: int
    prefix: int
    largest: tuple[PartitionBytes, ...]

    def near(self, limits: Limits, share: float) -> list[_Near]:
        both = (STATE_OPTION, self.state, limits.state), (PREFIX_OPTION, self.prefix, limits.prefix)
        return [
            _Near(option, size, limit)
            for option, size, limit in both
            if limit is not None and size >= limit * share
        ]


class Quota:
    """The limits of one checkpoint, shared by its stores in a process; thread-safe.

    Keeps no reference to the client, which is the key of the weak map of quotas.
    """

    def __init__(self, gen: str, limits: Limits, *, tenant: str = "") -> None:
        self._gen = gen
        self._limits = limits
        self._tenant = tenant
        self._found: _UsedBytes | None = None
        self._due_s = 0.0
        self._measuring_s = 0.0
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Replaces the lock, which another thread may have held at the fork."""
        self._lock = threading.Lock()

    def check(self, client: Client, *, where: str) -> None:
        """Raises at a limit. Asks Redis only if nothing is known yet, or before it raises.

        Raises:
            QuotaError: A limit is reached.
        """
        known = self._found or self._look(client, _OWN_AGE_MS)
        if not known.near(self._limits, 1.0):
            return
        now = self._look(client, _REFUSAL_AGE_MS)
        for near in now.near(self._limits, 1.0):
            parts = "; ".join(map(str, now.largest)) or "none"
            raise QuotaError(
                "writing the next version",
                found=f"{near}. Largest of this query: {parts}. The state is intact",
                where=where,
            )

    def after_commit(self, client: Client) -> None:
        """Measures if that is due, and logs a warning near a limit. Never raises."""
        now_s = client.clock.monotonic_s()
        if now_s < self._due_s:
            return
        # Set at once, so that no other store of this process measures meanwhile.
        self._due_s = now_s + _LOOK_EVERY_S
        try:
            self.watch(client)
        except RedisStateError as error:
            log.warning("the state could not be measured: %s", error)
            self._due_s = client.clock.monotonic_s() + _LOOK_EVERY_S
            return
        ended_s = client.clock.monotonic_s()
        self._due_s = ended_s + max(_LOOK_EVERY_S, _rest_s(ended_s - now_s))

    def watch(self, client: Client) -> None:
        """Measures, and logs a warning once for each limit that is near."""
        now = self._look(client, _OWN_AGE_MS)
        near = now.near(self._limits, WARN_SHARE)
        before, self._warned = self._warned, {one.option for one in near}
        for one in near:
            if one.option not in before:
                log.warning(
                    "checkpoint %s: %s: %d %%. At the limit the query stops. Largest of this "
                    "query: %s. Raise the limit, keep fewer versions or remove state.",
                    self._gen,
                    one,
                    one.bytes * 100 // one.max,
                    "; ".join(map(str, now.largest)) or "none",
                )

    def _look(self, client: Client, age_ms: int) -> _UsedBytes:
        with self._lock:
            time, raw = self._read(client)
            now_ms = time_ms(time)
            entries = parse_sizes(raw)
            if age_ms == _OWN_AGE_MS:
                age_ms = max(age_ms, round(1000 * _rest_s(self._measuring_s)))
            own = entries.pop(self._gen, None)
            if own is None or not own.is_younger(age_ms, now_ms):
                own = self._measured(client, now_ms)
            others = self._others(client, entries, now_ms) if self._limits.prefix else {}
            total = own.bytes + sum(one.bytes for one in others.values())
            self._found = _UsedBytes(own.bytes, total, own.largest)
            return self._found

    def _read(self, client: Client) -> tuple[Sequence[bytes], Mapping[bytes, bytes]]:
        sizes = keys.sizes(tenant=self._tenant)
        if self._limits.prefix is not None:
            time, raw = client.call(_WHAT, [("TIME",), ("HGETALL", sizes)])
            return time, raw
        time, own = client.call(_WHAT, [("TIME",), ("HGET", sizes, self._gen)])
        return time, {} if own is None else {self._gen.encode(): own}

    def _measured(self, client: Client, now_ms: int) -> Size:
        began_s = client.clock.monotonic_s()
        limits = Size(now_ms, 0, self._limits.state or 0, self._limits.prefix or 0)
        found = _measure(client, self._gen, limits, tenant=self._tenant)
        self._measuring_s = client.clock.monotonic_s() - began_s
        self._write(client, {self._gen: found})
        return found

    def _others(
        self, client: Client, entries: Mapping[str, Size], now_ms: int
    ) -> Mapping[str, Size]:
        """Returns the sizes of the other checkpoints; measures old ones, for about a second."""
        (listing,) = client.call(_WHAT, [("HGETALL", keys.checkpoints(tenant=self._tenant))])
        names = {name.decode("ascii", "replace") for name in listing if b":" not in name}
        listed = {name for name in names if is_gen(name)} - {self._gen}
        gone = set(entries) - listed
        if gone:
            client.call(_WHAT, [("HDEL", keys.sizes(tenant=self._tenant), *gone)])
        known = {gen: entries.get(gen, Size()) for gen in listed}
        old = [gen for gen, size in known.items() if not size.is_younger(_OTHERS_AGE_MS, now_ms)]
        fresh: dict[str, Size] = {}
        until_s = client.clock.monotonic_s() + _OTHERS_MAX_S
        for gen in sorted(old, key=lambda gen: known[gen].at_ms):
            if client.clock.monotonic_s() >= until_s:
                break
            fresh[gen] = replace(known[gen], at_ms=now_ms)
            try:
                fresh[gen] = _measure(client, gen, fresh[gen], tenant=self._tenant)
            except FormatError as error:
                log.warning("checkpoint %s is not counted: %s", gen, error)
        if fresh:
            self._write(client, fresh)
        return known | fresh

    def _write(self, client: Client, sizes: Mapping[str, Size]) -> None:
        words = [word for gen, size in sizes.items() for word in (gen, encode_size(size))]
        client.call(_WHAT, [("HSET", keys.sizes(tenant=self._tenant), *words)])


def _rest_s(took_s: float) -> float:
    """Returns the pause after a measurement."""
    return min(took_s * _REST_SHARE, _REST_S_MAX)


def _measure(client: Client, gen: str, size: Size, *, tenant: str) -> Size:
    """Sums the bytes of all segments that manifests name, and finds the largest partitions."""
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    ids = counted_partitions(client, gen, parse_operators(raw).values(), tenant=tenant)
    parts = sorted(_parts(client, ids), key=lambda one: -one.bytes)
    largest = tuple(one for one in parts[:_LARGEST_MAX] if one.bytes)
    return replace(size, bytes=sum(one.bytes for one in parts), largest=largest)


def _parts(client: Client, ids: Iterable[PartitionId]) -> Iterator[PartitionBytes]:
    ids = list(ids)
    commands = [("HGETALL", keys.meta(id_)) for id_ in ids]
    replies = client.call_in_pieces(_WHAT, commands, at_once=_PARTITIONS_AT_ONCE)
    for id_, raw in zip(ids, replies, strict=True):
        yield PartitionBytes(id_.store.operator, id_.store.store, id_.partition, bytes_in(raw))


_quotas: weakref.WeakKeyDictionary[Client, dict[tuple[str, str, Limits], Quota]] = (
    weakref.WeakKeyDictionary()
)


def quota_of(client: Client, gen: str, limits: Limits, *, tenant: str = "") -> Quota | None:
    """Returns the quota that a checkpoint's stores share on one client; ``None`` without limits."""
    if not limits:
        return None
    known = _quotas.setdefault(client, {})
    return known.setdefault((gen, tenant, limits), Quota(gen, limits, tenant=tenant))
