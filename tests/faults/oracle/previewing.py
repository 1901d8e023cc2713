"""Previews of the attempts of a schedule, and what readers of uncommitted state are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.codec import MSGPACK
from redis_state.errors import RedisStateError
from redis_state.format import ordered
from redis_state.format.chunks import chunks
from redis_state.format.entry import Entry
from redis_state.format.rows import FAMILY_BYTES
from redis_state.ids import PartitionId, Pin
from redis_state.protocol.previews import with_previews
from redis_state.reader.scan import pieces_of
from redis_state.reader.versions import open_latest
from redis_state.store.partition_store import PartitionStore
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.keyspace import Keyspace
from tests.faults.oracle.runs import Run
from tests.faults.oracle.timeline import Rows, Timeline
from tests.faults.oracle.wire import Ran

_TTL_MS = 600_000
_SLICES_MAX = 3
_TRIES_MAX = 4


class Previewing:
    """Makes previews, and judges what the server accepts and shows.

    Attributes:
        shown: Rows of each preview by its attempt and number, noted before it was sent.
    """

    def __init__(
        self,
        dice: Dice,
        timeline: Timeline,
        keyspace: Keyspace,
        partition: PartitionId,
        counters: Counter[str],
        client: Callable[[], Client],
    ) -> None:
        self.shown: dict[tuple[str, int], Rows] = {}
        self._dice = dice
        self._timeline = timeline
        self._keyspace = keyspace
        self._partition = partition
        self._counters = counters
        self._client = client
        self._owners: dict[str, tuple[str, int]] = {}
        self._ended: set[str] = set()
        self._expired: set[str] = set()

    def begin(self, run: Run, store: PartitionStore) -> PreviewWriter:
        """Returns the writer of the previews of an attempt."""
        uid, pin = store._uid, store._local.pin
        # The server's clock is real: what is valid for no time has expired, whenever it is read.
        expires = self._dice.one_in(8)
        if expires:
            self._expired.add(uid)
        client = self._client()
        return PreviewWriter(
            self, client, self._partition, run.run_id, store, pin, uid, not expires
        )

    def read(self, name: str) -> None:
        """Reads as `at="uncommitted"` does, and judges the rows."""
        client = self._client()
        opened = open_latest(client, [self._partition], alone=False)
        (found,) = with_previews(client, opened, alone=False)
        codec = MSGPACK.with_lists()
        rows = {
            codec.decode_key(key[FAMILY_BYTES:]): codec.decode_value(value)
            for piece, _ in pieces_of(client, found)
            for key, value in piece
        }
        if not (found.segments and found.segments[0].slice):
            self._timeline.loaded(name, found.pin, rows, asked=None, logged_in=None)
            return
        self._counters["previews read"] += 1
        uid, _, number = found.pin.uid.rpartition(".")
        wanted = self.shown.get((uid, int(number)))
        if rows != wanted:
            self._counters["wrong"] += 1
            self._timeline.problem(f"{name}: {found.pin} reads as {rows}, shown was {wanted}")

    def ran(self, ran: Ran) -> None:
        """Judges what a script answered."""
        if ran.name == "preview" and ran.word == "OK":
            self._accepted(ran)
        elif ran.name == "previewed" and ran.word == "OK":
            self._counters["previews found"] += 1
            self._judge(ran.reply[2], "was shown")
        elif ran.name == "publish" and ran.word in ("OK", "ALREADY"):
            self._ended.add(ran.args[4])
            if ran.word == "OK" and self._holder == ran.args[0]:
                self._end(lambda _, version: version == int(ran.args[2]) + 1)
        elif ran.name == "abort" and ran.word == "OK" and "u" in ran.args[1:]:
            self._ended.add(ran.args[0].rpartition(":")[2])
        elif ran.name in ("acquire", "open") and ran.word == "OK" and ran.args[0]:
            opened, holder = self._keyspace.opened(self._partition)
            self._end(lambda run, version: run != holder or version <= opened)
        else:
            return
        self._look()

    def _look(self) -> None:
        """No attempt that has ended is named."""
        named = self._keyspace.field(keys.meta(self._partition), "u")
        if named is not None and not named.endswith(b" -"):
            self._judge(named.decode().split(" ")[1], "is named", expired=False)

    @property
    def _holder(self) -> str:
        return self._keyspace.opened(self._partition)[1]

    def _end(self, of: Callable[[str, int], bool]) -> None:
        self._ended.update(uid for uid, owner in self._owners.items() if of(*owner))

    def _accepted(self, ran: Ran) -> None:
        run, uid, version = ran.args[0], ran.args[3], int(ran.args[1])
        self._judge(uid, "was accepted", expired=False)
        if (version, run) != self._keyspace.opened(self._partition):
            self._timeline.problem(f"a preview of {uid} was accepted from a run that was fenced")
        self._owners[uid] = run, version + 1
        for key, entry in zip(ran.keys[1:], ran.args[9::2], strict=True):
            blocks = self._keyspace.count(key)
            if blocks != int(entry.split(" ")[3]):
                self._timeline.problem(f"a preview names {key}, which has {blocks} blocks")

    def _judge(self, uid: str, what: str, *, expired: bool = True) -> None:
        # A server that went back in time may show an attempt as it was then.
        if uid in self._ended and not self._timeline.destroyed:
            self._timeline.problem(f"a preview of {uid} {what}, whose attempt has ended")
        if expired and uid in self._expired:
            self._timeline.problem(f"a preview of {uid} {what} after its expiry")


@dataclass
class PreviewWriter:
    """Sets the previews of one attempt, as the JVM adapter does (docs/format.md, section 16).

    Attributes:
        over: Whether there are no further previews.
    """

    previewing: Previewing
    client: Client
    id_: PartitionId
    run_id: str
    store: PartitionStore
    parent: Pin
    uid: str
    is_valid: bool
    over: bool = False
    number: int = 0
    slice: int = 0
    known: str = ""
    was_shown: bool = False
    sent: bool = False
    slices: list[tuple[int, Entry, dict[bytes, bytes | None]]] = field(default_factory=list)
    before: dict[bytes, bytes | None] = field(default_factory=dict)

    def show(self, rows: Mapping[str, list[int]]) -> None:
        """Shows what changed since the last call."""
        if self.over:
            return
        now = self._changes()
        changed = {
            key: value
            for key, value in now.items()
            if key not in self.before or self.before[key] != value
        }
        self.before = now
        while len(self.slices) >= _SLICES_MAX:
            changed = self.slices.pop()[2] | changed
        try:
            self._set(changed, dict(rows))
        except RedisStateError:
            # Whether the server has it is found out by the next one.
            self.slices.clear()

    def end(self) -> None:
        """The attempt is given up."""
        self.over = True
        if not self.sent:
            return
        ident = f"d:{self.parent.version + 1}:{self.uid}"
        both = [keys.meta(self.id_), keys.segment(self.id_, ident)]
        self.client.script("giving up", script("abort"), both, [ident, "u"])

    def _changes(self) -> dict[bytes, bytes | None]:
        changes = self.store._changes
        return dict(changes.rows) | {key: bytes(value) for key, value in changes.growing.items()}

    def _set(self, changed: dict[bytes, bytes | None], rows: Rows) -> None:
        if not self.slices:
            changed = self.before
        for _ in range(_TRIES_MAX):
            self.number += 1
            self._add(changed)
            self.previewing.shown[self.uid, self.number] = rows
            self.sent = True
            reply = self._send()
            if reply == ["OK"]:
                self.known, self.was_shown = f"{self.uid} {self.number}", True
                return
            self.slices.clear()
            changed = self.before
            if reply[0] == "OTHER":
                uid, _, number = reply[1].partition(" ")
                replaced = uid != self.uid and reply[2] == "1" and self.was_shown
                if replaced or (uid == self.uid and number == "-"):
                    self.over = True
                    return
                self.known = reply[1]
            elif reply[0] != "INCOMPLETE":
                self.over = True
                return

    def _add(self, changed: Mapping[bytes, bytes | None]) -> None:
        """Sends the blocks of a further slice."""
        self.slice += 1
        ident = f"u:{self.parent.version + 1}:{self.uid}.{self.slice}"
        in_order = dict(sorted(changed.items()))
        families = self.store._partition.families(self.store._local)
        written = ordered.write(
            ident,
            list(in_order),
            list(in_order.values()),
            ref=self.parent.uid,
            live=0,
            families=families.table,
            highest_id=families.highest_id,
            with_families=self.parent.version == 0,
            appended={},
            cleared=[],
        )
        self.slices.append((self.slice, written.entry, in_order))
        both = [keys.meta(self.id_), keys.segment(self.id_, ident)]
        for chunk in chunks(written.fields):
            flat = [word for pair in chunk.items() for word in pair]
            args = [ident, str(_TTL_MS), *flat]
            self.client.script(f"staging {ident}", script("stage"), both, args)

    def _send(self) -> list[str]:
        newest_first = self.slices[::-1]
        version = self.parent.version
        heads = [
            keys.segment(self.id_, f"u:{version + 1}:{self.uid}.{slice_}")
            for slice_, _, _ in newest_first
        ]
        args = [self.run_id, str(version), self.parent.uid, self.uid, str(self.number), self.known]
        args += [str(_TTL_MS if self.is_valid else 0), str(_TTL_MS)]
        args += [word for slice_, entry, _ in newest_first for word in (str(slice_), entry.text)]
        all_keys = [keys.meta(self.id_), *heads]
        return self.client.script("setting a preview", script("preview"), all_keys, args)
