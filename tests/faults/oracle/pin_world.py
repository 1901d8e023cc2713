"""Partitions of a schedule with pins as they are on the server, and the rules that they must keep.

Everything is read without the scripts: docs/format.md, section 14, says what has to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from redis_state import keys
from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import PartitionId
from redis_state.protocol.pins import KEEP

DAY_MS = 86_400_000
_YEAR_MS = 365 * DAY_MS
PIN_FIELDS = ("a:", "x:", "y:", "z:")

Copy = list[tuple[str, bytes, int]]


@dataclass(frozen=True)
class Pinned:
    """A pin, as the field of its owner says."""

    version: int
    uid: str
    expires: int
    kind: str
    idents: tuple[str, ...]


@dataclass(eq=False)
class Seen:
    """Fields of a manifest after a delivery."""

    fields: Mapping[str, str] = field(default_factory=dict)
    left_ms: int = -2

    @cached_property
    def named(self) -> dict[str, Segment]:
        """Segments of the manifest by their fields."""
        own = {n: v for n, v in self.fields.items() if n[:2] in ("d:", "s:")}
        return {name: self._placed(name, entry) for name, entry in own.items()}

    @cached_property
    def aside(self) -> dict[str, Segment]:
        """Segments that were set aside, by their idents."""
        found = {n[2:]: v for n, v in self.fields.items() if n[:2] == "z:"}
        return {ident: self._placed(*text.split(" ", maxsplit=1)) for ident, text in found.items()}

    @cached_property
    def pins(self) -> dict[str, Pinned]:
        """Pins by their owners."""
        found = {n[2:]: v.split(" ") for n, v in self.fields.items() if n[:2] == "x:"}
        return {
            owner: Pinned(int(w[0]), w[1], int(w[2]), w[3], tuple(w[4:]))
            for owner, w in found.items()
        }

    @property
    def all(self) -> Iterator[Segment]:
        """Segments of the manifest, and those set aside."""
        yield from self.named.values()
        yield from self.aside.values()

    def number(self, name: str) -> int:
        """A field that holds a number; 0 if it is not there."""
        return int(self.fields.get(name, "0"))

    @property
    def has_pins(self) -> bool:
        """True if a release that knows only format 1 must not read this."""
        return any(name == "g" or name[:2] in PIN_FIELDS for name in self.fields)

    @property
    def has_free(self) -> bool:
        """True if retention may remove something that was set aside."""
        return any(f"y:{ident}" not in self.fields for ident in self.aside)

    def _placed(self, name: str, entry: str) -> Segment:
        segment = parse_segment(name, entry)
        place = self.fields.get(f"a:{segment.ident}", "")
        return parse_segment(name, entry, place)


@dataclass(eq=False)
class Node:
    """A checkpoint with one partition.

    Attributes:
        parent: The checkpoint that it was forked from.
        life: ``new`` until a fork can be used, then ``live``, ``purged`` or ``gone``; ``lost`` if
            its parent was purged by force and is gone.
        log: Attempt of each version that the driver counts on.
        disturbed: Counts purges, fail-overs and the like, after which tasks may fail.
        format: Checkpoint format, 1 or 2.
    """

    id: PartitionId
    name: str
    parent: Node | None = None
    life: str = "live"
    log: dict[int, str] = field(default_factory=dict)
    disturbed: int = 0
    format: int = 1
    seen: Seen = field(default_factory=Seen)
    copied: Copy | None = None

    @property
    def gen(self) -> str:
        """Id of the checkpoint."""
        return self.id.store.gen

    @property
    def meta(self) -> str:
        """Key of the manifest."""
        return keys.meta(self.id)

    @property
    def query(self) -> str:
        """Key of the registry."""
        return keys.query(self.gen)

    @property
    def newest(self) -> int:
        """The newest version that the driver counts on."""
        return max(self.log, default=0)

    @property
    def is_there(self) -> bool:
        """True if its segments have to be there."""
        return self.life in ("live", "purged")


class World:
    """All checkpoints of a schedule.

    Attributes:
        problems: Rules that were broken.
        keeps: Pins of kind ``keep`` that were made, by checkpoint and owner.
        names: Owners of names that a call has given, by checkpoint and name.
    """

    def __init__(self, server: Transport) -> None:
        self._server = server
        self.nodes: list[Node] = []
        self.problems: list[str] = []
        self.keeps: dict[tuple[str, str], Pinned] = {}
        self.names: dict[tuple[str, str], str] = {}
        self._keys: dict[str, tuple[int, int]] = {}

    def ask(self, *commands: Command) -> list[Any]:
        """Sends commands past all faults."""
        return self._server.exchange(commands) if commands else []

    def of(self, gen: str) -> Node | None:
        """The checkpoint of an id."""
        return next((node for node in self.nodes if node.gen == gen), None)

    def look(self) -> None:
        """Reads everything that rules are about."""
        some = [node for node in self.nodes if node.life != "gone"]
        found = self.ask(*(c for n in some for c in (("HGETALL", n.meta), ("PTTL", n.meta))))
        for node, fields, left_ms in zip(some, found[::2], found[1::2], strict=True):
            node.seen = Seen({k.decode(): v.decode() for k, v in fields.items()}, left_ms)
        names = sorted({self._key(node, one) for node in some for one in node.seen.all})
        found = self.ask(*(c for n in names for c in (("HLEN", n), ("PTTL", n))))
        self._keys = dict(zip(names, zip(found[::2], found[1::2], strict=True), strict=True))

    def judge(self) -> None:
        """Compares what was read last with the rules."""
        for node in self.nodes:
            if node.life in ("gone", "lost"):
                continue
            self._pins(node)
            if node.life == "live" and node.parent is not None and not node.seen.fields:
                self._wrong(node, "a fork that can be used is gone")
            elif node.is_there:
                self._segments(node)
                self._versions(node)
                self._parent(node)

    def chain(self, node: Node, at: int, uid: str) -> list[str]:
        """Idents of the segments that a version is read from, newest first."""
        named, found = node.seen.named, []
        while at > 0:
            one = named.get(f"s:{at}:{uid}") or named.get(f"d:{at}:{uid}")
            if one is None:
                break
            found.append(one.ident)
            if one.alone:
                break
            at, uid = at - 1, one.entry.ref
        return found

    # ---- rules ---------------------------------------------------------------------------------

    def _wrong(self, node: Node, text: str) -> None:
        self.problems.append(f"{node.name}: {text}")

    def _pins(self, node: Node) -> None:
        """Owners and their segments name each other, and the format number says so."""
        seen = node.seen
        format_ = seen.fields.get("f", "")
        if format_.startswith("purged"):
            format_ = seen.fields["p"].split(" ")[1]
        if seen.has_pins and format_ != "2":
            self._wrong(node, f"format {format_} with fields of format 2")
        idents = {one.ident for one in seen.named.values()}
        if both := idents & seen.aside.keys():
            self._wrong(node, f"{both} is set aside, and in the manifest")
        owners = {n[2:]: v.split(" ") for n, v in seen.fields.items() if n[:2] == "y:"}
        for owner, pin in seen.pins.items():
            for ident in pin.idents:
                if owner not in owners.get(ident, ()):
                    self._wrong(node, f"{owner} pins {ident}, which does not name it")
                if ident not in idents and ident not in seen.aside:
                    self._wrong(node, f"{owner} pins {ident}, which is gone")
        for ident, found in owners.items():
            for owner in found:
                if owner not in seen.pins or ident not in seen.pins[owner].idents:
                    self._wrong(node, f"{ident} names {owner}, which does not pin it")
        for name in seen.fields:
            if name[:2] == "a:" and name[2:] not in idents and name[2:] not in seen.aside:
                self._wrong(node, f"{name} is the place of nothing")
        for (gen, owner), pin in self.keeps.items():
            there = seen.pins.get(owner)
            if gen == node.gen and (there is None or there.idents != pin.idents):
                self._wrong(node, f"{owner} kept {pin}, which is {there}")
        for (gen, name), owner in self.names.items():
            if gen == node.gen and node.life == "live" and owner not in seen.pins:
                self._wrong(node, f"{owner} does not pin {name}, which was given")

    def _segments(self, node: Node) -> None:
        """Segments that are named or held are whole, and stay."""
        for one in node.seen.named.values():
            self._whole(node, one, lasting=one.gen == "")
        for ident, one in node.seen.aside.items():
            if f"y:{ident}" in node.seen.fields:
                self._whole(node, one, lasting=False)

    def _whole(self, node: Node, one: Segment, *, lasting: bool) -> None:
        at = node if not one.gen else self.of(one.gen)
        if at is None or at.life in ("gone", "lost") or not one.entry.blocks:
            return
        if at.seen.fields.get(f"a:{one.ident}", "").startswith("f "):
            # A file has the blocks; loads read them.
            return
        blocks, left_ms = self._keys[self._key(node, one)]
        where = f"{one.ident} of {at.name}"
        if blocks != one.entry.blocks:
            self._wrong(node, f"{where} has {blocks} blocks, not {one.entry.blocks}")
        elif node.life == at.life == "live" and left_ms != -1 and (lasting or left_ms < _YEAR_MS):
            self._wrong(node, f"{where} expires in {left_ms} ms")

    def _versions(self, node: Node) -> None:
        """Every version from the floor to the opened one can be loaded, and attempts above it."""
        seen, named = node.seen, node.seen.named
        opened, uid, floor = seen.number("o"), seen.fields.get("ou", "-"), seen.number("w")
        for one in named.values():
            is_next = not one.snapshot and (one.version, one.entry.ref) == (opened + 1, uid)
            if is_next and opened >= floor and not self._loads(node, one.version, one.uid):
                self._wrong(node, f"{one.ident} cannot be loaded")
        at = opened
        while at >= max(floor, 1):
            if not self._loads(node, at, uid):
                self._wrong(node, f"version {at} {uid} cannot be loaded, floor {floor}")
                return
            below = named.get(f"d:{at}:{uid}")
            if below is None:
                if at > max(floor, 1):
                    self._wrong(node, f"version {at} {uid} has no parent, floor {floor}")
                return
            at, uid = at - 1, below.entry.ref

    def _loads(self, node: Node, at: int, uid: str) -> bool:
        named = node.seen.named
        while at > 0:
            if f"s:{at}:{uid}" in named:
                return True
            delta = named.get(f"d:{at}:{uid}")
            if delta is None:
                return False
            if delta.entry.complete:
                return True
            at, uid = at - 1, delta.entry.ref
        return True

    def _parent(self, node: Node) -> None:
        """The parent pins for ever what a fork names of it."""
        foreign = {one.ident for one in node.seen.all if one.gen}
        parent = node.parent
        if not foreign or parent is None or not parent.is_there:
            return
        pin = parent.seen.pins.get(node.gen)
        if "g" not in node.seen.fields:
            self._wrong(node, "it has forgotten its parent, and names segments of it")
        elif pin is None or pin.expires:
            self._wrong(node, f"{len(foreign)} segments of {parent.name} are pinned by {pin}")
        elif missing := foreign - set(pin.idents):
            self._wrong(node, f"{missing} of {parent.name} is not pinned")

    def _key(self, node: Node, one: Segment) -> str:
        return keys.segment(node.id, one.ident, one.gen)

    # ---- time and servers ----------------------------------------------------------------------

    def pass_by(self, ms: int) -> None:
        """Advances the time of every key with an expiry; replicas do not lag."""
        names = sorted(self.ask(("KEYS", "*"))[0])
        lefts = self.ask(*(("PTTL", name) for name in names))
        due: list[Command] = []
        for name, left in zip(names, lefts, strict=True):
            if left >= 0:
                later = ("PEXPIRE", name, str(left - ms))
                due.append(("DEL", name) if left <= ms else later)
        self.ask(*due)
        self.look()
        for node in self.nodes:
            self._age(node, ms)
        self.look()
        for node in self.nodes:
            if node.life == "purged" and not node.seen.fields:
                node.life = "gone"
                self.keeps = {at: pin for at, pin in self.keeps.items() if at[0] != node.gen}
        for node in self.nodes:
            self._lose(node)
            node.copied = None

    def _age(self, node: Node, ms: int) -> None:
        for name, value in node.seen.fields.items():
            words = value.split(" ")
            if name[:2] == "x:" and words[2] != "0":
                words[2] = str(max(1, int(words[2]) - ms))
                self.ask(("HSET", node.meta, name, " ".join(words)))
            elif name == "gt":
                self.ask(("HSET", node.meta, name, str(int(value) - ms)))

    def _lose(self, node: Node) -> None:
        """A fork whose parent was purged by force is lost with it, if it needs it."""
        foreign = {one.gen for one in node.seen.all if one.gen}
        if any(at is not None and at.life == "gone" for at in map(self.of, foreign)):
            node.life = "lost"

    def copy(self, node: Node) -> None:
        """The replica of a checkpoint's node has received what there is."""
        names = [n.decode() for n in sorted(self.ask(("KEYS", f"{node.meta[:-2]}*"))[0])]
        found = self.ask(*(c for n in names for c in (("DUMP", n), ("PTTL", n))))
        node.copied = list(zip(names, found[::2], found[1::2], strict=True))

    def fail_over(self, node: Node) -> bool:
        """The replica takes over with what it has; false if it has nothing else."""
        if node.copied is None or node.life not in ("live", "new"):
            return False
        names = self.ask(("KEYS", f"{node.meta[:-2]}*"))[0]
        self.ask(*(("DEL", name) for name in names))
        self.ask(*(("RESTORE", n, str(max(0, left)), raw) for n, raw, left in node.copied))
        node.disturbed += 1
        self.look()
        others = {at: pin for at, pin in self.keeps.items() if at[0] != node.gen}
        found = node.seen.pins.items()
        self.names = {
            at: owner
            for at, owner in self.names.items()
            if at[0] != node.gen or owner in node.seen.pins
        }
        self.keeps = others | {(node.gen, o): pin for o, pin in found if pin.kind == KEEP}
        if node.life == "live" and node.parent is not None and node.seen.left_ms != -1:
            node.life = "gone"  # as it was before its command was done
            self.ask(("DEL", node.query), *(("DEL", name) for name, _, _ in node.copied))
        return True
