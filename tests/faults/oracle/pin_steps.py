"""Commands and maintenance of pins, step by step as docs/format.md, section 14, has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms, words
from redis_state.backend.script import Command, script
from redis_state.errors import RedisStateError, UnavailableError
from redis_state.ids import PartitionId
from redis_state.protocol.pins import (
    FORK,
    KEEP,
    PinnedVersion,
    fork_partitions,
    held_commands,
    pin_all,
    read_held,
    unpin_all,
)
from tests.faults.oracle.pin_world import DAY_MS

OWNER_GONE_MS = 25 * 3_600_000
"""Time between the two looks at the owner of a pin that is gone."""

_FORKING = "forking a partition"
_MAINTAINING = "maintaining pins"
_NAMING = "naming a version"
_PLAIN_WORDS = 2
_TRIES_MAX = 5
# In one step: an expiry that came late would end a fork that is complete.
_BEGIN = """
if redis.call('EXISTS', KEYS[1]) == 1 then return {'PRESENT'} end
redis.call('HSET', KEYS[1], 'f', '1', 'forkOf', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'OK'}
"""


@dataclass(frozen=True)
class Fork:
    """The command that makes a checkpoint of one partition from a version of another one.

    Attributes:
        wait: Returns once a replica of the parent's node has what was written there.
    """

    client: Client
    parent: PartitionId
    gen: str
    version: int
    uid: str
    wait: Callable[[], None]

    def run(self) -> None:
        """All steps; may be sent again after any of them."""
        query = keys.query(self.gen)
        parent = f"{self.parent.store.gen} {self.version}"
        begin: Command = ("EVAL", _BEGIN, "1", query, parent, str(DAY_MS))
        self.client.call(_FORKING, [begin])
        pinned = self.pin(DAY_MS)
        fork_partitions(self.client, self.gen, pinned, ttl_ms=DAY_MS)
        self.secure()
        self.finish()

    def pin(self, ttl_ms: int) -> list[PinnedVersion]:
        """Pins the version for the fork; 0 is for ever."""
        uids = {self.parent: self.uid}
        return pin_all(
            self.client,
            [self.parent],
            self.gen,
            self.version,
            kind=FORK,
            uids=uids,
            ttl_ms=ttl_ms,
        )

    def secure(self) -> None:
        """Pins for ever what the partition names, and looks whether it is there still."""
        for _ in range(_TRIES_MAX):
            pinned = self.pin(0)
            # Where the first pin had ended meanwhile, these may be other segments.
            fork_partitions(self.client, self.gen, pinned, ttl_ms=DAY_MS)
            self.wait()
            if self.is_held():
                return
        raise UnavailableError(_FORKING, found="the server keeps losing pins")

    def is_held(self) -> bool:
        """Returns whether the pin is there, and has no expiry."""
        (reply,) = self.client.call(_FORKING, held_commands([self.parent], self.gen))
        held = read_held(self.parent, reply)
        return held is not None and words(_FORKING, reply)[3] == "0"

    def finish(self) -> None:
        """Removes the expiries: from here on the fork can be used."""
        meta = keys.meta(self.parent.of_gen(self.gen))
        reply = self.client.script(_FORKING, script("renew"), [meta], ["0"])
        if reply[0] != "OK":
            raise UnavailableError(_FORKING, found=f"the partition is not there: {reply}")
        self.client.call(_FORKING, [("PERSIST", keys.query(self.gen))])


@dataclass(frozen=True)
class Naming:
    """The call that gives a version of a checkpoint of one partition a name.

    Attributes:
        call: Part of the owner that no other call has.
    """

    client: Client
    id: PartitionId
    name: str
    call: str
    version: int

    @property
    def owner(self) -> str:
        """Owner of the pin."""
        return f"keep.{self.name}.{self.call}"

    def run(self) -> bool:
        """Pins the version, and enters the name; returns whether the call has the name."""
        query, field = keys.query(self.id.store.gen), f"keep:{self.name}"
        if self.client.call(_NAMING, [("HEXISTS", query, field)])[0]:
            return False
        try:
            pin_all(self.client, [self.id], self.owner, self.version, kind=KEEP)
        except RedisStateError:
            self.unpin()
            raise
        entry = json.dumps({"owner": self.owner, "call": self.call})
        enter: list[Command] = [("HSETNX", query, field, entry), ("HGET", query, field)]
        if self.client.call(_NAMING, enter)[1] != entry.encode():
            self.unpin()
            return False
        (reply,) = self.client.call(_NAMING, held_commands([self.id], self.owner))
        if read_held(self.id, reply) is None:
            self.client.script(_NAMING, script("forget"), [query], [field, self.owner])
            self.unpin()
            return False
        return True

    def unpin(self) -> None:
        """Ends the pin of the call, as far as the server answers."""
        with suppress(RedisStateError):
            unpin_all(self.client, [self.id], self.owner)


def drop_name(client: Client, id_: PartitionId, name: str) -> None:
    """Removes a name, and then its pin."""
    query, field = keys.query(id_.store.gen), f"keep:{name}"
    (raw,) = client.call(_NAMING, [("HGET", query, field)])
    if raw is not None:
        owner = json.loads(raw)["owner"]
        client.script(_NAMING, script("forget"), [query], [field, owner])
        unpin_all(client, [id_], owner)


def name_of(owner: str) -> str:
    """Returns the name of a version that a call keeps; empty for another owner."""
    words = owner.split(".")
    return words[1] if words[0] == KEEP and len(words) > _PLAIN_WORDS else ""


@dataclass(frozen=True)
class PinMaintenance:
    """Maintenance of the pins of a partition.

    Attributes:
        notes: When an owner was found gone first, in ms since 1970; stands for ``{T rs}:v``.
        grace_ms: Time between the last foreign segment and the unpin.
    """

    client: Client
    id: PartitionId
    notes: dict[tuple[str, str], int]
    grace_ms: int = DAY_MS

    def run(self) -> None:
        """Ends expired pins, those whose owner is gone, and the parent's pin for a fork."""
        fields, now = self.client.call(_MAINTAINING, [("HGETALL", keys.meta(self.id)), ("TIME",)])
        if fields.get(b"f") not in (b"1", b"2"):
            return
        self.unpin_parent(fields)
        for name, value in sorted(fields.items()):
            if name[:2] == b"x:":
                _, _, expires, kind, *_ = value.decode().split(" ")
                self.end(name[2:].decode(), int(expires), kind, time_ms(now))

    def end(self, owner: str, expires: int, kind: str, now_ms: int) -> None:
        """Ends a pin, if it is time for that."""
        is_expired = 0 < expires <= now_ms
        if (
            is_expired
            or (kind == FORK and self.is_gone(owner, now_ms))
            or (name_of(owner) and self.is_unnamed(owner, now_ms))
        ):
            unpin_all(self.client, [self.id], owner, expires=str(expires))

    def is_unnamed(self, owner: str, now_ms: int) -> bool:
        """Returns whether no name had an owner before, long ago; notes the first look."""
        asked = [("HGET", keys.query(self.id.store.gen), f"keep:{name_of(owner)}")]
        (raw,) = self.client.call(_MAINTAINING, asked)
        at = self.id.store.gen, owner
        if raw is not None and json.loads(raw)["owner"] == owner:
            self.notes.pop(at, None)
            return False
        return now_ms - self.notes.setdefault(at, now_ms) >= OWNER_GONE_MS

    def is_gone(self, owner: str, now_ms: int) -> bool:
        """Returns whether a fork was found gone before, long ago; notes the first look.

        One that has forgotten its parent counts as gone: a fail-over of this node brought back the
        pin that it had ended.
        """
        meta = keys.meta(self.id.of_gen(owner))
        asked = [("EXISTS", keys.query(owner)), ("HMGET", meta, "f", "g")]
        there, (format_, parent) = self.client.call(_MAINTAINING, asked)
        at = self.id.store.gen, owner
        if there and (format_ is None or parent is not None):
            self.notes.pop(at, None)
            return False
        return now_ms - self.notes.setdefault(at, now_ms) >= OWNER_GONE_MS

    def unpin_parent(self, fields: Mapping[bytes, bytes]) -> None:
        """Unpins at the parent what a fork has not named for a day."""
        if b"g" not in fields:
            return
        reply = self._detach("0")
        if reply[0] != "DUE":
            return
        try:
            unpin_all(self.client, [self.id.of_gen(reply[1])], self.id.store.gen)
        except RedisStateError:
            return  # the parent was purged: once more when it is back, or gone
        self._detach("1")

    def _detach(self, is_unpinned: str) -> list[str]:
        calls = [(keys.meta(self.id), (str(self.grace_ms), is_unpinned))]
        (reply,) = self.client.call(_MAINTAINING, script("detach").many(calls))
        return words(_MAINTAINING, reply)
