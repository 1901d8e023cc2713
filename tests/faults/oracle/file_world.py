"""A folder of three kinds of file systems, and the rules of files (docs/format.md, section 17)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import cache
from typing import BinaryIO

import redis

from redis_state import keys
from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from redis_state.errors import FormatError, UnavailableError
from redis_state.files import Item
from redis_state.format.entry import Segment, parse_segment
from redis_state.format.place import FilePlace
from redis_state.format.region import read_region
from redis_state.places.owners import owner_of
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.network import Network
from tests.faults.oracle.pin_world import DAY_MS, Node, World

KINDS = ("prompt", "late", "cut")
"""File systems: one that shows at once what was written, one that shows it late and lists it later,
and one whose uploads may be cut without an error."""

_CLOSING_TURNS_MAX = 8
_LATE_TURNS = 6
_FIELD, _KEY = 120, 300
"""Bytes that a field and a key count beside the block; the eighth of a block is a reserve."""
_LISTED_TURNS = 60
_LASTING_MS = 30 * DAY_MS


class SimFiles:
    """Files in memory. Each step is a turn of its own, which may get no answer.

    Args:
        slow: A close takes many turns, and shows a part of the file meanwhile.

    Attributes:
        content: Bytes of every file.
        problems: Broken rules.
        slow_closes: Number of files that were there in part for some turns.
    """

    renames = False

    def __init__(self, kind: str, dice: Dice, network: Network, *, slow: bool) -> None:
        self.kind = kind
        self.slow_closes = 0
        self._is_slow = slow
        self.content: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._dice, self._network = dice, network
        self._written: dict[str, int] = {}
        self._turns = 0

    def items(self, path: str) -> list[Item]:
        """Implements `Files.items`; a late file system lists a file long after it was written."""
        self._turn()
        lag = _LISTED_TURNS if self.kind == "late" and self._network.faults else 0
        begin = f"{path}/"
        names = sorted(
            name.removeprefix(begin)
            for name in self.content
            if name.startswith(begin) and self._turns - self._written[name] >= lag
        )
        return [Item(name, False, 0) for name in names if "/" not in name]

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Implements `Files.read_ranges`."""
        self._turn()
        lag = _LATE_TURNS if self.kind == "late" and self._network.faults else 0
        if path not in self.content or self._turns - self._written[path] < lag:
            raise FileNotFoundError(path)
        return [self.content[path][at : at + length] for at, length in spans]

    def create_open(self, path: str) -> BinaryIO:
        """Implements `Files.create_open`."""
        return _Upload(lambda raw: self._close(path, raw))

    def remove(self, path: str) -> None:
        """Implements `Files.remove`."""
        self._turn()
        if self.content.pop(path, None) is None:
            raise FileNotFoundError(path)

    def settle(self) -> None:
        """Time goes by: what was written so far is seen and listed from here on."""
        self._turns += _LISTED_TURNS

    def error(self, attempted: str, error: Exception) -> UnavailableError:
        """Implements `Files.error`."""
        return UnavailableError(attempted, found=f"{type(error).__name__}")

    def _close(self, path: str, raw: bytes) -> None:
        if self._is_slow and self._network.faults:
            self._written.setdefault(path, self._turns)
            self.content[path] = raw[: self._dice.below(len(raw) + 1)]
            for _ in range(self._dice.between(1, _CLOSING_TURNS_MAX)):
                self._turn()
            self.slow_closes += 1
            # A sweep may have deleted the part meanwhile; the writer does not see it.
            del self._written[path]
        self._store(path, raw)
        self._turn()

    def _store(self, path: str, raw: bytes) -> None:
        if path in self._written:
            self.problems.append(f"{path} was written twice")
        self._written[path] = self._turns
        is_cut = self.kind == "cut" and self._network.faults and self._dice.one_in(4)
        self.content[path] = raw[: self._dice.below(len(raw) + 1)] if is_cut else raw

    def _turn(self) -> None:
        self._turns += 1
        try:
            self._network.exchange([("PING",)])
        except redis.ConnectionError as error:
            raise TimeoutError from error


class _Upload(io.BytesIO):
    """A file that is there once it is closed, as a whole or as far as its writer came."""

    def __init__(self, end: Callable[[bytes], None]) -> None:
        super().__init__()
        self._end = end

    def close(self) -> None:
        if not self.closed:
            raw = self.getvalue()
            super().close()
            self._end(raw)


class FileWorld(World):
    """Checkpoints of a schedule with files.

    Attributes:
        files: The file system; ``None`` before the schedule has begun.
        rows: Files that Redis knows, by the checkpoint's id.
        bounded: How often a partition was compared with its bound.
        merged: How often a run was compared with its entry.
    """

    def __init__(self, server: Transport) -> None:
        super().__init__(server)
        self.files: SimFiles | None = None
        self.rows: dict[str, dict[str, tuple[str, int]]] = {}
        self.bounded = 0
        self.merged = 0
        self._used: dict[str, int] = {}
        self._uncounted: dict[str, set[bytes]] = {}

    def look(self) -> None:
        """Reads the files that Redis knows, too."""
        super().look()
        some = [node for node in self.nodes if node.life != "gone"]
        found = self.ask(*(("HGETALL", keys.files(node.id)) for node in some))
        self.rows = {
            node.gen: {
                name.decode(): (row.decode()[0], int(row.split(b" ")[2]))
                for name, row in rows.items()
            }
            for node, rows in zip(some, found, strict=True)
        }

    def judge(self) -> None:
        """Compares files, their rows and what manifests name."""
        super().judge()
        self.problems += self.files.problems if self.files else []
        for node in self.nodes:
            if node.life in ("live", "purged"):
                self._judge_rows(node)
            if node.life == "live":
                self._judge_runs(node)
                self._judge_bound(node)

    def _judge_runs(self, node: Node) -> None:
        """A bounded partition has one run at most, which is whole; nothing else keeps its key."""
        fields = node.seen.fields
        named = [parse_segment(n, v) for n, v in fields.items() if n[:2] == "r:"]
        keyed = {keys.segment(node.id, one.ident): one for one in named}
        if len(named) > ("h" in fields):
            self._wrong(node, f"{len(named)} runs, and the bound {fields.get('h')}")
        begin = keys.segment(node.id, "r:")
        (there,) = self.ask(("KEYS", begin.replace("{", "\\{") + "*"))
        names = sorted({*keyed, *(name.decode() for name in there)})
        found = self.ask(*(c for n in names for c in (("HLEN", n), ("PTTL", n))))
        for name, blocks, left_ms in zip(names, found[::2], found[1::2], strict=True):
            one = keyed.get(name)
            if one is not None and (blocks, left_ms) != (one.entry.blocks, -1):
                self._wrong(node, f"{one.ident} has {blocks} blocks, and expires in {left_ms} ms")
            if one is None and left_ms == -1:
                self._wrong(node, f"{name} stays, and is named by nothing")
            self.merged += one is not None

    def _judge_bound(self, node: Node) -> None:
        """Redis has at most what is counted, and nothing comes above the share."""
        words = node.seen.fields.get("h", "").split(" ")
        before = self._used.pop(node.gen, None)
        if len(words) != 2:
            return
        share, counted = map(int, words)
        begin = node.meta[:-1]
        (names,) = self.ask(("KEYS", begin.replace("{", "\\{") + "*"))
        idents = {name: name.decode()[len(begin) :] for name in names}
        # Not counted: a commit that lacked its script, and a snapshot begun before the bound.
        blocks = [
            name
            for name, ident in idents.items()
            if ident[0] in "dsr" or (ident[0] == "n" and f"h:{ident}" in node.seen.fields)
        ]
        blocks = self._without_older(node, blocks, idents, is_new=before is None)
        found = self.ask(*(("HVALS", name) for name in blocks))
        used = sum(_FIELD * len(values) + _KEY + sum(map(len, values)) for values in found)
        self._used[node.gen] = used
        self.bounded += 1
        if used > counted:
            self._wrong(node, f"{used} bytes are in Redis, and {counted} are counted")
        if used > share and (before is None or used > before):
            self._wrong(node, f"{used} bytes are in Redis, and its share is {share}")

    def _without_older(
        self, node: Node, blocks: list[bytes], idents: dict[bytes, str], *, is_new: bool
    ) -> list[bytes]:
        """Leaves out keys that were there before the bound, until an entry names them."""
        fields = node.seen.fields
        runs = {parse_segment(n, v).ident for n, v in fields.items() if n[:2] == "r:"}
        named = runs | {one.ident for one in node.seen.all}
        if is_new:
            loose = {name for name in blocks if idents[name] not in named}
            older = {name for name in loose if f"h:{idents[name]}" not in fields}
            self._uncounted[node.gen] = older
        # A fail-over may bring a key back that was gone.
        older = self._uncounted[node.gen]
        older -= {name for name in older if idents.get(name) in named}
        return [name for name in blocks if name not in older]

    def _judge_rows(self, node: Node) -> None:
        used: dict[str, int] = {}
        for one in node.seen.all:
            if one.place is not None:
                used[one.place.file] = used.get(one.place.file, 0) + 1
        rows = self.rows.get(node.gen, {})
        for file, count in used.items():
            if rows.get(file) != ("u", count):
                self._wrong(node, f"{count} segments are in {file}, whose row is {rows.get(file)}")
        for file, (state, count) in rows.items():
            if state == "u" and file not in used:
                self._wrong(node, f"{file} is used by {count} segments, and none is there")

    def _whole(self, node: Node, one: Segment, *, lasting: bool) -> None:
        at = node if not one.gen else self.of(one.gen)
        if at is None or at.life in ("gone", "lost") or not one.entry.blocks:
            return
        owned = next((own for own in at.seen.all if own.ident == one.ident), one)
        if owned.place is None:
            super()._whole(node, one, lasting=lasting)
            return
        problem = self.file_problem(at, owned, owned.place)
        if problem:
            self._wrong(node, f"{one.ident} of {at.name}: {problem}")
        _, left_ms = self._keys.get(self._key(node, one), (0, -2))
        if at.life == "live" and (left_ms == -1 or left_ms > _LASTING_MS):
            self._wrong(node, f"{one.ident} of {at.name} is in a file, and stays in Redis")

    def file_problem(self, at: Node, one: Segment, place: FilePlace) -> str:
        """Returns what is wrong with a segment in a file; empty if it is whole."""
        raw = self.files.content.get(path_of(at.gen, place.file)) if self.files else None
        if raw is None:
            return f"{place.file} is gone"
        region = raw[place.offset : place.offset + place.bytes]
        found = _blocks_in(region, owner_of(at.id, one))
        return "" if found == one.entry.blocks else f"{place.file} has {found} blocks"

    def _age(self, node: Node, ms: int) -> None:
        super()._age(node, ms)
        (rows,) = self.ask(("HGETALL", keys.files(node.id)))
        for name, row in rows.items():
            state, at, *rest = row.decode().split(" ")
            later = " ".join([state, str(int(at) - ms), *rest])
            self.ask(("HSET", keys.files(node.id), name, later))

    def minute(self, node: Node) -> bool:
        """The keys of segments that were moved expire; false if there are none."""
        idents = [one.ident for one in node.seen.all if one.place is not None]
        commands: list[Command] = [("DEL", keys.segment(node.id, one)) for one in idents]
        return any(self.ask(*commands))


def path_of(gen: str, file: str) -> str:
    """Path of a file in the simulated folder."""
    return f"/{gen}/{file}"


@cache
def _blocks_in(region: bytes, owner: object) -> int:
    try:
        return len(read_region(owner, region))  # type: ignore[arg-type]  # hashable for the cache
    except FormatError:
        return -1
