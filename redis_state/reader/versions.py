"""Chooses the version of a read, one for all partitions (docs/reading.md).

A partition is opened at version v only after the batch that wrote v ended everywhere and was
logged. So one partition that has opened v proves that v is confirmed in all partitions. Those that
have not opened v yet are read at v, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import words
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError, StateError, UnavailableError
from redis_state.format.entry import FORMATS
from redis_state.ids import EMPTY, PartitionId, Pin, text_number
from redis_state.protocol.hot_runs import is_left_out, lists_damaged_run, note_damaged_entry
from redis_state.protocol.opening import (
    NO_RUN,
    Opened,
    beyond,
    made_up_now,
    open_args,
    open_commands,
    read_opened,
    read_replies,
)
from redis_state.reader.block_cache import BlockCache

_TRIES_MAX = 5
_CHAIN_MAX = 16
_TOGETHER_MAX = 64
_BEHIND_FIELDS = ("o", "c", "b", "k", "e")
_CONFIRMED_FIELDS = ("f", "o", "ou")
# Reply of the script `open` for a partition without a manifest.
_NOTHING = [b"STATE_LOST", b"0", b"0"]
_WHAT = "opening the state"
_FASTER = "the query replaced the version at each attempt"
_CHOOSING = "choosing the version to read"


class NewestOpener:
    """Opens the newest confirmed version of partitions; reads only what is new.

    Safe to share between threads: a race can only keep an older answer, which costs bytes.

    Args:
        blocks: Cached segments of the partitions.
    """

    def __init__(self, client: Client, blocks: BlockCache) -> None:
        self._client = client
        self._blocks = blocks
        self._last: dict[PartitionId, Opened] = {}

    def open(self, ids: Sequence[PartitionId]) -> list[Opened]:
        """Opens partitions: in one round trip if all are unchanged, else with a second one.

        The second round trip opens all partitions, so its answer is of one moment. If the query
        goes back, partitions that were unchanged before would be of another timeline.

        Raises:
            RedisStateError: See `read_replies`.
        """
        known = [self._known(id_) for id_ in ids]
        same = self._unchanged([one for one in known if one is not None])
        return same if len(same) == len(ids) else self._opened(list(zip(ids, known, strict=True)))

    def _unchanged(self, known: Sequence[Opened]) -> list[Opened]:
        """Returns the partitions whose newest confirmed attempt is still the same.

        Needs no script, since the content of segments never changes (docs/format.md, section 7).
        """
        read: list[Command] = [("HMGET", keys.meta(one.id), *_CONFIRMED_FIELDS) for one in known]
        replies = self._client.call(_WHAT, read) if read else []
        return [
            one
            for one, reply in zip(known, replies, strict=True)
            if reply[0] in FORMATS and reply[1:] == [b"%d" % one.pin.version, one.pin.uid.encode()]
        ]

    def _opened(self, wanted: Sequence[tuple[PartitionId, Opened | None]]) -> list[Opened]:
        cached = [() if one is None or self._is_long(one) else (one.pin,) for _, one in wanted]
        try:
            answers = self._answers(wanted, cached, hot_runs=True)
        except FormatError as error:
            if all(cached):
                raise
            # The entry of a hot run may have bytes that are not text.
            note_damaged_entry(wanted[0][0], error)
            answers = self._answers(wanted, cached, hot_runs=False)
        found = []
        for (id_, last), pins, answer in zip(wanted, cached, answers, strict=True):
            opened = self._read(id_, answer, pins)
            if last is not None and opened.pin == last.pin:
                # Caches of this version belong to this object.
                opened = last
            elif last is not None and opened.start != EMPTY:
                segments = opened.segments + last.segments
                opened = replace(opened, start=EMPTY, segments=segments)
            found.append(opened)
        self.keep(found)
        return found

    def _answers(
        self,
        wanted: Sequence[tuple[PartitionId, Opened | None]],
        cached: Sequence[Sequence[Pin]],
        *,
        hot_runs: bool,
    ) -> list[list[str]]:
        """Returns the replies of the script, of one moment."""
        what = script("open")
        calls = [
            (keys.meta(id_), open_args(NO_RUN, None, cached=pins, hot_runs=hot_runs and not pins))
            for (id_, _), pins in zip(wanted, cached, strict=True)
        ]
        if len(calls) == 1:
            # The server usually knows the script by now, so its text need not be sent.
            ((meta, args),) = calls
            return [self._client.script(_WHAT, what, [meta], args)]
        replies = self._client.call(_WHAT, what.many(calls)) if calls else []
        pairs = zip(wanted, replies, strict=True)
        return [words(_WHAT, reply, where=str(id_)) for (id_, _), reply in pairs]

    def _read(self, id_: PartitionId, answer: list[str], pins: Sequence[Pin]) -> Opened:
        """Decodes an answer; opens the version again without a hot run that is damaged."""
        try:
            opened = read_opened(id_, answer, version=None, cached=pins)
        except FormatError as error:
            if not lists_damaged_run(answer):
                raise
            note_damaged_entry(id_, error)
            args = open_args(NO_RUN, None)
            again = self._client.script(_WHAT, script("open"), [keys.meta(id_)], args)
            return read_opened(id_, again, version=None)
        if is_left_out(opened.segments):
            (opened,) = made_up_now(self._client, [opened])
        return opened

    def keep(self, opened: Sequence[Opened]) -> None:
        """Records versions that were opened without this opener."""
        self._last.update((one.id, one) for one in opened)

    def moved(self, opened: Opened) -> None:
        """Forgets a version whose segments have changed."""
        self._last.pop(opened.id, None)

    def _is_long(self, opened: Opened) -> bool:
        """Returns whether to ask anew for a whole chain, since there may be a snapshot by now.

        Deltas that were merged do not count: their rows and the blocks below are cached.
        """
        segments, recent = opened.segments, self._blocks.recent(opened.id)
        together = 0
        if (
            recent is not None
            and segments[-len(recent.opened.segments) :] == recent.opened.segments
        ):
            together = min(recent.count, _TOGETHER_MAX)
        return len(segments) - together > _CHAIN_MAX

    def _known(self, id_: PartitionId) -> Opened | None:
        last = self._last.get(id_)
        return None if last is None or last.pin == EMPTY else last


def level(client: Client, opened: Sequence[Opened]) -> list[Opened]:
    """Opens partitions that move together at the newest version that one of them has confirmed.

    Takes one round trip if some are behind, else none; a few if the query advances or goes back
    in between.

    Args:
        opened: At their own newest confirmed versions.

    Raises:
        StateError: A partition does not hold the version.
        UnavailableError: The query kept advancing in between.
    """
    if len(opened) == 1:
        return list(opened)
    ids = [one.id for one in opened]
    version = max((one.pin.version for one in opened), default=0)
    found = list(opened)
    for tries in range(_TRIES_MAX):
        if all(one.pin.version == version for one in found):
            return found
        try:
            again = _open_at(client, ids, version)
        except StateError:
            # Retention was faster, or the query is going back to an older version.
            if tries + 1 == _TRIES_MAX:
                raise
            again = None
        if again is not None:
            return [_same_or(one, again.get(one.id, one)) for one in found]
        found, version = _by_epoch(client, ids)
    raise UnavailableError(_WHAT, found=_FASTER)


def runs_reached(client: Client, stores: Sequence[Sequence[PartitionId]]) -> list[tuple[int, int]]:
    """Returns the epoch of the run that holds each store, and its newest confirmed version."""
    read: list[Command] = [("HMGET", keys.meta(id_), "e", "o") for ids in stores for id_ in ids]
    rest = iter(client.call("looking for the newest run", read) if read else [])
    marks = [[_numbers(next(rest)) for _ in ids] for ids in stores]
    return [max(of_store, default=(0, 0)) for of_store in marks]


def open_latest(client: Client, ids: Sequence[PartitionId], *, alone: bool) -> list[Opened]:
    """Opens the newest version that every partition has published.

    Args:
        alone: Each partition has versions of its own, and is opened at its newest one.

    Raises:
        StateError: A partition does not hold the version.
    """
    read: list[Command] = [("HMGET", keys.meta(id_), "e", "l", "o") for id_ in ids]
    failed: StateError | None = None
    for _ in range(_TRIES_MAX):
        marks = [list(map(_number, reply)) for reply in client.call(_CHOOSING, read)]
        published = [mark[1] for mark in marks]
        if not alone and marks:
            published = [_published(marks)] * len(ids)
        asked = [open_args(NO_RUN, version) for version in published]
        commands = script("open").many(list(zip(map(keys.meta, ids), asked, strict=True)))
        replies = client.call(_WHAT, [*commands, *read]) if commands else []
        now = [list(map(_number, reply)) for reply in replies[len(ids) :]]
        del replies[len(ids) :]
        if not alone and now and _went_back(now, published[0]):
            continue
        try:
            return [
                one
                for id_, version, reply in zip(ids, published, replies, strict=True)
                for one in read_replies([id_], [reply], version=version)
            ]
        except StateError as error:
            failed = error
    if alone and failed is not None:
        raise failed
    # The query is going back to an older version, or data was lost: then this raises.
    return level(
        client, read_replies(ids, client.call(_WHAT, open_commands(ids, None)), version=None)
    )


def _published(marks: Sequence[Sequence[int]]) -> int:
    """Returns the newest version that every partition has published, on one timeline.

    Args:
        marks: Epoch, latest version and opened version of each partition.
    """
    newest = max(epoch for epoch, _, _ in marks)
    reached = max(opened for epoch, _, opened in marks if epoch == newest)
    if any(epoch != newest for epoch, _, _ in marks):
        # A run takes one partition after the other. Newer versions in the others may not count.
        return reached
    # A version that one partition has opened was published by all, unless it was lost.
    return max(min(latest for _, latest, _ in marks), reached)


def _went_back(marks: Sequence[Sequence[int]], version: int) -> bool:
    """Returns whether the query went back behind a version while it was opened.

    Then partitions may have been opened on two timelines.
    """
    return _published(marks) < version


def _same_or(before: Opened, again: Opened) -> Opened:
    """Returns the known object of an unchanged version, since caches belong to that object."""
    return before if before.pin == again.pin else again


def _open_at(
    client: Client, ids: Sequence[PartitionId], version: int
) -> dict[PartitionId, Opened] | None:
    """Opens partitions at a version that one of them has confirmed, all as of one moment.

    If a partition has several attempts at the version, only Spark's log knows the right one. Then
    all partitions are opened at the version below, which is unambiguous.

    Returns:
        ``None`` if the query is going back. Then the version belongs to a run before the newest
        one, and versions that the newest run published are of another timeline.
    """
    for _ in range(_TRIES_MAX):
        read: list[Command] = [("HMGET", keys.meta(id_), *_BEHIND_FIELDS) for id_ in ids]
        replies = client.call(_WHAT, [*open_commands(ids, version), *read])
        answers = dict(zip(ids, replies[: len(ids)], strict=True))
        marks = dict(zip(ids, replies[len(ids) :], strict=True))
        unwritten = beyond(ids, {id_ for id_ in ids if answers[id_] == _NOTHING})
        there = [id_ for id_ in ids if id_ not in unwritten]
        if _is_going_back([marks[id_] for id_ in there], version):
            return None
        opened = read_replies(there, [answers[id_] for id_ in there], version=version)
        before = [one.id for one in opened if one.opened < version]
        # A task may have opened the version between the two reads. Then the marks are of another
        # moment, and say nothing about the attempt that was found.
        if not any(_number(marks[id_][0]) >= version for id_ in before):
            break
    else:
        raise UnavailableError(_WHAT, found=_FASTER)
    if any(_is_open_which(marks[id_]) for id_ in before):
        version -= 1
        replies = client.call(_WHAT, open_commands(there, version))
        opened = read_replies(there, replies, version=version)
    return {one.id: one for one in opened}


def _is_going_back(marks: Sequence[Sequence[bytes | None]], version: int) -> bool:
    """Returns whether the newest run has opened older versions only."""
    reached = [(_number(mark[-1]), _number(mark[0])) for mark in marks]
    return bool(reached) and max(reached)[1] < version


def _is_open_which(mark: Sequence[bytes | None]) -> bool:
    """Returns whether there are several attempts right above the opened version."""
    _, format_, siblings, contenders, _ = mark
    return contenders is not None or (format_ == b"2" and len((siblings or b"").split()) > 1)


def _by_epoch(client: Client, ids: Sequence[PartitionId]) -> tuple[list[Opened], int]:
    """Opens partitions at their own newest confirmed versions; returns the newest run's, too.

    A run that goes back takes one partition after the other. The partitions that it has not reached
    are still at a version that the others have dropped.
    """
    read: list[Command] = [("HGET", keys.meta(id_), "e") for id_ in ids]
    replies = client.call(_WHAT, [*open_commands(ids, None), *read])
    opened = read_replies(ids, replies[: len(ids)], version=None)
    epochs = [_number(raw) for raw in replies[len(ids) :]]
    newest = max(epochs)
    of_newest = [one for one, epoch in zip(opened, epochs, strict=True) if epoch == newest]
    return opened, max(one.pin.version for one in of_newest)


def _numbers(reply: Sequence[bytes | None]) -> tuple[int, int]:
    first, second = reply
    return _number(first), _number(second)


def _number(raw: bytes | None) -> int:
    """Parses a number of the meta fields; opening the partition reports malformed ones."""
    return text_number((raw or b"0").decode("ascii", "replace")) or 0
