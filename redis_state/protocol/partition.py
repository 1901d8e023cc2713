"""Steps of one partition (docs/format.md, sections 6 to 8). Stateless except for counters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import words
from redis_state.backend.script import Command, ScriptCall, script
from redis_state.errors import FormatError, FullError, RedisStateError, StateError, UnavailableError
from redis_state.format.chunks import (
    STAGED_BY_SCRIPT_MAX,
    STAGED_BYTES_MAX,
    Fields,
    chunks,
    split_last,
)
from redis_state.format.entry import Entry, Segment
from redis_state.ids import PartitionId, Pin
from redis_state.places.born import Born
from redis_state.process import Home
from redis_state.protocol.foreign import lost_with_parent
from redis_state.protocol.hot_runs import is_left_out, lists_damaged_run, note_damaged_entry
from redis_state.protocol.opening import Opened, open_args, opening, read_opened
from redis_state.protocol.refusal import refusal
from redis_state.protocol.retention import DROPPED_TTL_MS, RetainReport, retain
from redis_state.protocol.room import ROOM, RoomError, RoomMaker, RoomWaits
from redis_state.protocol.runs import STAGED_TTL_MS, RegisteredRun, is_newest, register_run
from redis_state.protocol.segments import fetch, fetch_whole

_RISES_MAX = 2
_ACQUIRE_TRIES_MAX = 5
_PUBLISH_TRIES_MAX = 5
_NO_LOG = "-"  # the caller of a Python store names the version, so there is no commit log to read

log = logging.getLogger(__name__)


class PartitionClient:
    """Sends the steps of one partition.

    Args:
        versions_to_retain: Number of versions below the opened one that stay loadable.
        keep_ms: 0, or the expiry of every key of an ephemeral checkpoint.
        where: Name of the partition in errors; empty means its numbers.
    """

    # Format 1 of Python checkpoints: uids are not given from outside.
    _format: ClassVar[str] = "1"

    def __init__(
        self,
        client: Client,
        id_: PartitionId,
        *,
        versions_to_retain: int,
        keep_ms: int = 0,
        where: str = "",
    ) -> None:
        self.id = id_
        self.waits = RoomWaits()
        self._home = Home()
        self._shared = client
        self._meta = keys.meta(id_)
        self._where = where or str(id_)
        self._retain = str(versions_to_retain)
        self._keep_ms = str(keep_ms)

    @property
    def client(self) -> Client:
        """The client, of the process that opened it."""
        self._home.check(where=self._where)
        return self._shared

    def open(
        self,
        run_id: str,
        version: int | None,
        cached: Sequence[Pin] = (),
        *,
        with_time: bool = False,
        hot_runs: bool = False,
    ) -> Opened:
        """Opens a version, and pins it if the run holds the partition.

        Args:
            run_id: Empty for a reader, which changes nothing.
            version: ``None`` for the newest confirmed one.
            with_time: True to request the time of the next version, for a store whose rows have a
                time to live.
            hot_runs: True to accept a hot run in the place of the deltas that it merges, unless
                this process could not read that one.

        Raises:
            StateError: The version does not exist.
            ConflictError: The holding run went on, or reads another attempt at the version.
        """
        args = open_args(run_id, version, cached=cached, with_time=with_time, hot_runs=hot_runs)
        answer: list[str] = []
        try:
            answer = self._script(opening(version), "open", [], args)
            opened = read_opened(
                self.id,
                answer,
                version=version,
                cached=cached,
                where=self._where,
                with_time=with_time,
            )
        except FormatError as error:
            # The entry of a hot run may have bytes that are not text: then there is no answer.
            if not hot_runs or (answer and not lists_damaged_run(answer)):
                raise
            note_damaged_entry(self.id, error)
        else:
            if not is_left_out(opened.segments):
                return opened
        return self.open(run_id, version, cached, with_time=with_time)

    def latest(self) -> int | None:
        """Returns the newest published version; ``None`` if nothing was ever written."""
        (found,) = self.client.call("looking for the newest version", [("HGET", self._meta, "l")])
        return None if found is None else int(found)

    def acquire(self, run: RegisteredRun, pin: Pin, *, share: int | None = None) -> RegisteredRun:
        """Acquires the partition for a run that is about to write on top of a version.

        Args:
            share: Most bytes of the partition in Redis, 0 for no bound; ``None`` leaves it as it
                is.

        Returns:
            The run, with a greater epoch if it had to register again.

        Raises:
            ConflictError: A newer run holds the partition, or the version was replaced.
            StateError: The version no longer exists.
            UnavailableError: The server keeps going back to an older state.
        """
        what = f"acquiring the partition at version {pin.version}"
        tries = 0
        while True:
            tries += 1
            args = [run.run_id, str(run.epoch), "1" if run.by_driver else "0", str(pin.version)]
            args += [pin.uid, self._retain, str(DROPPED_TTL_MS), self._format, self._keep_ms]
            args += [_NO_LOG, *([] if share is None else [str(share)])]
            reply = self._script(what, "acquire", [], args)
            match reply:
                case ["OK", dropped]:
                    if dropped != "0":
                        log.info("%s: %s: %s later segments dropped", self.id, what, dropped)
                    return run
                case ["REOPEN", _] if tries < _ACQUIRE_TRIES_MAX:
                    self.open(run.run_id, pin.version)
                case ["FENCED", "epoch", above, _] if tries <= _RISES_MAX and self._behind(
                    run, above
                ):
                    run = self._register_above(run, int(above))
                case _:
                    raise refusal(what, reply, where=self._where, version=pin.version)

    def stage(self, ident: str, name: str, fields: Fields) -> None:
        """Stores blocks of a segment before its publication. Without fields, renews their expiry.

        Args:
            ident: Part of the segment's key after ``P:``.
            name: Field of the segment in the manifest.
        """
        what, both = f"staging blocks of {ident}", [self._meta, keys.segment(self.id, ident)]
        room = self._room(ident)
        for sent in list(chunks(fields, bytes_max=STAGED_BYTES_MAX)) or [{}]:
            calls = [
                script("stage").call(both, name, str(STAGED_TTL_MS), *self._flat(ident, chunk))
                for chunk in list(chunks(sent, bytes_max=STAGED_BY_SCRIPT_MAX)) or [{}]
            ]
            while refused := room.refused(replies := self.client.scripts(what, calls)):
                room.make(what, refused)
            for reply in replies:
                self._check_staged(what, reply, version=0)

    def stage_snapshot(self, ident: str, fields: Fields, *, is_bounded: bool = False) -> None:
        """Stores blocks of a snapshot ahead of `add_snapshot`, under a key of their own.

        Args:
            is_bounded: True if the partition has a bound, so that the blocks are counted.

        Raises:
            RoomError: They do not fit into the partition's share.
        """
        what, key = f"staging blocks of {ident}", keys.staged(self.id, ident)
        for chunk in chunks(fields, bytes_max=STAGED_BYTES_MAX):
            if is_bounded:
                args = [f"n:{ident}", str(STAGED_TTL_MS), *self._flat(ident, chunk)]
                reply = self.client.script(what, script("stage"), [self._meta, key], args)
                if reply[0] == ROOM:
                    raise RoomError
                self._check_staged(what, reply, version=0)
                continue
            stored: Command = ("HSET", key, *self._flat(ident, chunk))
            expiry: Command = ("PEXPIRE", key, str(STAGED_TTL_MS))
            self.client.transaction(what, [stored, expiry], unanswered=UnavailableError)

    def commit(
        self, run: RegisteredRun, parent: Pin, uid: str, entry: Entry, fields: Fields
    ) -> None:
        """Publishes the version after `parent`.

        Raises:
            ConflictError: Another run or attempt was faster.
            StateError: The parent version was lost.
            UnavailableError: The server keeps losing staged blocks.
            CommitOutcomeUnknownError: The server did not answer until the deadline, or the commit
                is not yet as durable as the option `durability` demands.
        """
        what = f"committing version {parent.version + 1}"
        ident = f"d:{parent.version + 1}:{uid}"
        early, last = split_last(fields, blocks=entry.blocks)
        tries, room = 0, self._room(ident)
        while True:
            tries += 1
            if early:
                self.stage(ident, ident, early)
            staged, reply = self._publish(what, run, parent, uid, entry, last)
            refused = room.refused([staged, reply])
            if refused and reply[0] in (ROOM, "INCOMPLETE"):
                room.make(what, refused)
                tries -= 1
                early = {}
                if reply[0] != ROOM:
                    # The blocks that came before are gone, too.
                    early, last = split_last(fields, blocks=entry.blocks)
                continue
            match reply:
                case ["OK"] | ["ALREADY"]:
                    return
                case ["REOPEN", _] if tries < _PUBLISH_TRIES_MAX:
                    log.warning("%s: %s: the server forgot that the version is open", self.id, what)
                    run = self._reopen(what, run, parent)
                    early = {}
                case ["INCOMPLETE", found] if tries < _PUBLISH_TRIES_MAX:
                    log.warning(
                        "%s: %s: the server has %s blocks, sending all again", self.id, what, found
                    )
                    early, last = split_last(fields, blocks=entry.blocks)
                case _:
                    raise refusal(what, reply, where=self._where, version=parent.version)

    def abort(self, ident: str) -> None:
        """Drops the staged blocks of an attempt. Never raises, because leftovers expire anyway."""
        step, key = script("abort"), keys.segment(self.id, ident)
        what = f"dropping the staged blocks of {ident}"
        try:
            try:
                self.client.transaction(what, [step.by_text([self._meta, key], ident)])
            except FullError:
                self._script(what, "abort", [ident], [ident])
        except RedisStateError as error:
            log.info("%s: its blocks expire by themselves: %s", self.id, error)

    def abort_snapshot(self, ident: str) -> None:
        """Drops the staged blocks of a snapshot. Never raises, because leftovers expire anyway."""
        what = f"dropping the staged blocks of {ident}"
        try:
            self.client.call(what, [("UNLINK", keys.staged(self.id, ident))])
        except RedisStateError as error:
            log.info("%s: its blocks expire by themselves: %s", self.id, error)

    def fetch(self, segment: Segment, names: Sequence[str]) -> list[bytes | None]:
        """Reads fields of a segment; ``None`` for a missing field.

        Raises:
            SegmentGoneError: The segment is no longer complete.
        """
        return fetch(self.client, self.id, segment, names)

    def fetch_whole(self, segments: Sequence[Segment]) -> list[dict[str, bytes]]:
        """Reads all fields of several small segments, in few round trips.

        Raises:
            SegmentGoneError: A segment is no longer complete.
            FormatError: A field has an unknown name.
        """
        return fetch_whole(self.client, self.id, segments)

    def lost_with_parent(
        self, segment: Segment, attempted: str, *, version: int
    ) -> StateError | None:
        """Returns the error if a segment is gone with the parent of a fork; else ``None``."""
        return lost_with_parent(
            self.client,
            self.id,
            segment.gen,
            attempted=attempted,
            where=self._where,
            version=version,
        )

    def add_snapshot(
        self, pin: Pin, writer: str, entry: Entry, fields: Fields | None = None
    ) -> bool:
        """Publishes a snapshot of a version; returns False if the manifest no longer wants it.

        Args:
            fields: Blocks that are not staged yet, of a partition without a bound.

        Raises:
            RoomError: See `stage_snapshot`.
        """
        self.stage_snapshot(f"s:{pin.version}:{writer}", fields or {})
        reply = self._enter_snapshot(pin, writer, entry, [])
        if reply == ROOM:
            raise RoomError
        return reply in ("OK", "ALREADY")

    def add_filed_snapshot(self, born: Born) -> bool:
        """Publishes a snapshot that is in a file; returns False if nobody wants it any more."""
        one, place = born.segment, [born.place.text, str(born.size)]
        pin = Pin(one.version, one.uid)
        return self._enter_snapshot(pin, one.entry.ref, one.entry, place) in ("OK", "ALREADY")

    def _enter_snapshot(self, pin: Pin, writer: str, entry: Entry, place: list[str]) -> str:
        ident = f"s:{pin.version}:{writer}"
        args = [str(pin.version), pin.uid, writer, str(entry.blocks), entry.text, self._keep_ms]
        what = f"adding the snapshot of version {pin.version}"
        all_keys = [self._meta, keys.segment(self.id, ident), keys.staged(self.id, ident)]
        reply = self.client.script(what, script("snapshot"), all_keys, [*args, *place])
        if reply[0] not in ("OK", "ALREADY"):
            log.info("%s: %s: %s", self.id, what, " ".join(reply))
        return reply[0]

    def retain(self, *, retained: int | None = None) -> RetainReport:
        """Removes segments that no retained version needs from the manifest, a few per call.

        Args:
            retained: Number of versions to keep below the opened one; ``None`` is that which the
                holding run wants.
        """
        return retain(self.client, self.id, retained=retained, where=self._where)

    def renew(self) -> None:
        """Renews the expiry of every key of the partition."""
        self._script("renewing the expiries", "renew", [], [self._keep_ms])

    def _publish(
        self, what: str, run: RegisteredRun, parent: Pin, uid: str, entry: Entry, last: Fields
    ) -> tuple[list[str], list[str]]:  # to the last blocks, and to the entry
        ident = f"d:{parent.version + 1}:{uid}"
        names = [self._meta, keys.segment(self.id, ident)]
        args = [run.run_id, str(run.epoch), str(parent.version), parent.uid, uid]
        args += [str(entry.blocks), entry.text, str(DROPPED_TTL_MS), self._format]
        args.append(self._keep_ms)
        flat, ttl = self._flat(ident, last), str(STAGED_TTL_MS)
        # Unless these are all blocks, the key of the delta has others already.
        is_apart = last and len(last) == entry.blocks
        stages: list[Command | ScriptCall] = []
        if is_apart:
            apart = keys.staged(self.id, ident)
            stages = [("HSET", apart, *flat), ("PEXPIRE", apart, ttl)]
            names.append(apart)
        elif last:
            stages = [script("stage").call(names, ident, ttl, *flat)]
        commands = [*stages, script("publish").call(names, *args)]
        replies = self.client.transaction(what, commands, counts=_is_published)
        stored = words(what, replies[0]) if last and not is_apart else ["OK"]
        if stored[0] != ROOM:
            self._check_staged(what, stored, version=parent.version)
        return stored, words(what, replies[-1])

    def _room(self, ident: str) -> RoomMaker:
        gives_up = partial(self.abort, ident)
        return RoomMaker(
            self.client, self.id, ident, self.waits, where=self._where, give_up=gives_up
        )

    def _flat(self, ident: str, fields: Fields) -> list[str | bytes]:
        signer, key = self.client.signer, keys.segment(self.id, ident)
        if signer is not None:
            fields = {name: signer.signed(key, name, block) for name, block in fields.items()}
        return [word for pair in fields.items() for word in pair]

    def _check_staged(self, what: str, reply: list[str], *, version: int) -> None:
        if reply not in (["OK"], ["PUBLISHED"]):
            raise refusal(what, reply, where=self._where, version=version)

    def _reopen(self, what: str, run: RegisteredRun, parent: Pin) -> RegisteredRun:
        opened = self.open(run.run_id, parent.version)
        if opened.pin != parent:
            raise refusal(
                what, ["FENCED", "replaced", "-"], where=self._where, version=parent.version
            )
        return run if opened.held else self.acquire(run, parent)

    def _behind(self, run: RegisteredRun, above: str) -> bool:
        """Returns whether a fail-over left that epoch; false if this run lost to a contender."""
        of = self.id.store
        return int(above) > run.epoch and is_newest(
            self.client, of.gen, run.run_id, tenant=of.tenant
        )

    def _register_above(self, run: RegisteredRun, found: int) -> RegisteredRun:
        of = self.id.store
        return register_run(
            self.client,
            of.gen,
            run.run_id,
            by_driver=run.by_driver,
            above=found,
            tenant=of.tenant,
        )

    def _script(
        self, what: str, name: str, idents: Sequence[str], args: Sequence[str | bytes]
    ) -> list[str]:
        all_keys = [self._meta, *(keys.segment(self.id, ident) for ident in idents)]
        return self.client.script(what, script(name), all_keys, args)


def _is_published(replies: Sequence[object]) -> bool:
    return replies[-1] in ([b"OK"], [b"ALREADY"])
