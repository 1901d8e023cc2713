"""Chooses the version of a read, one for all partitions (docs/reading.md).

A partition is opened at version v only after the batch that wrote v ended everywhere and was
logged. So one partition that has opened v proves that v is confirmed in all partitions. Those that
have not opened v yet are read at v, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import words
from redis_state.backend.script import Command, script
from redis_state.errors import ConfigError, StateError, UnavailableError
from redis_state.ids import EMPTY, PartitionId, is_uid, text_number
from redis_state.protocol.opening import (
    NO_RUN,
    Opened,
    beyond,
    open_args,
    open_commands,
    read_opened,
    read_replies,
)
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BlockCache

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Which(TypedDict, total=False):
        """Arguments that choose a version, besides `version`; docs/reading.md defines them.

        Attributes:
            at: ``"confirmed"``, ``"latest"``, or the number of a batch.
            uids: Spark's unique ids of `version`, one for each partition in their order.
            max_age: Seconds.
        """

        at: str | int
        uids: Sequence[str] | None
        max_age: float | None


CONFIRMED = "confirmed"
LATEST = "latest"

MAX_AGE_MIN_S = 120

_TRIES_MAX = 5
_CHAIN_MAX = 16
_TOGETHER_MAX = 64
_BEHIND_FIELDS = ("o", "c", "b", "k", "e")
_CONFIRMED_FIELDS = ("f", "o", "ou")
_FORMAT = b"1"
# Reply of the script `open` for a partition without a manifest.
_NOTHING = [b"STATE_LOST", b"0", b"0"]
_WHAT = "opening the state"
_FASTER = "the query replaced the version at each attempt"
_CHOOSING = "choosing the version to read"


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """The version that a call asks for.

    Attributes:
        version: ``None`` means that `at` decides.
        at: See `Which`.
        uids: See `Which`.
        max_age: See `Which`.

    Raises:
        ConfigError: The arguments contradict each other, or one is malformed.
    """

    version: int | None = None
    at: str | int = CONFIRMED
    uids: Sequence[str] | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        if self.version is not None and not _is_number(self.version):
            raise _unclear(
                "'version' is not the number of a version",
                "Give 0 or more: it is the number of the batch plus one.",
            )
        of_batch = _is_number(self.at)
        if not of_batch and self.at not in (CONFIRMED, LATEST):
            raise _unclear(
                "'at' is neither a version's name nor the number of a batch",
                "Give at='confirmed', at='latest', or a batch id such as at=41.",
            )
        if self.version is not None and self.at != CONFIRMED:
            raise _unclear("both 'at' and 'version' were given", "Give one of them.")
        if self.uids is not None and (self.version is None or not all(map(is_uid, self.uids))):
            raise ConfigError(
                "opening the state by unique ids",
                found="no version has these ids" if self.version is None else "an id is malformed",
                advice="Give the version, and its ids as the commit log of the checkpoint lists "
                "them.",
            )
        if self.max_age is None:
            return
        if self.version is not None or not isinstance(self.at, str):
            raise _unclear(
                "'max_age' was given for a version that does not change", "Omit one of them."
            )
        if not self.max_age >= MAX_AGE_MIN_S:
            raise _unclear(
                f"'max_age' is below {MAX_AGE_MIN_S} seconds, and a query gives a sign of life "
                "once a minute",
                f"Give {MAX_AGE_MIN_S} or more.",
            )

    @property
    def newest(self) -> bool:
        """True if the newest confirmed version is requested."""
        return self.version is None and self.at == CONFIRMED

    def named(self, info: OperatorInfo) -> int | None:
        """Returns the number of the version; ``None`` if it has to be looked for.

        Raises:
            ConfigError: The store has no version for this batch.
        """
        if not isinstance(self.at, int):
            return self.version
        if info.alone:
            raise _unclear("the versions of this store are not batches", "Give 'version'.")
        return version_after(self.at, info.ahead, what=_CHOOSING)

    def by_partition(self, info: OperatorInfo) -> Mapping[int, str]:
        """Returns the unique ids by partition.

        Raises:
            ConfigError: The number of ids is not the number of partitions.
        """
        if self.uids is None:
            return {}
        if len(self.uids) != info.partitions:
            raise ConfigError(
                "opening the state by unique ids",
                found=f"{len(self.uids)} ids were given for {info.partitions} partitions",
                advice="Give one for each partition, in their order.",
            )
        return dict(enumerate(self.uids))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


NEWEST = VersionRequest()
"""The confirmed version, which most calls ask for."""


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
            if reply == [_FORMAT, b"%d" % one.pin.version, one.pin.uid.encode()]
        ]

    def _opened(self, wanted: Sequence[tuple[PartitionId, Opened | None]]) -> list[Opened]:
        cached = [() if one is None or self._is_long(one) else (one.pin,) for _, one in wanted]
        asked = [open_args(NO_RUN, None, cached=pins) for pins in cached]
        what = script("open")
        calls = [(keys.meta(id_), args) for (id_, _), args in zip(wanted, asked, strict=True)]
        if len(calls) == 1:
            # The server usually knows the script by now, so its text need not be sent.
            ((meta, args),) = calls
            answers = [self._client.script(_WHAT, what, [meta], args)]
        else:
            replies = self._client.call(_WHAT, what.many(calls)) if calls else []
            pairs = zip(wanted, replies, strict=True)
            answers = [words(_WHAT, reply, where=str(id_)) for (id_, _), reply in pairs]
        found = []
        for (id_, last), pins, answer in zip(wanted, cached, answers, strict=True):
            opened = read_opened(id_, answer, version=None, cached=pins)
            if last is not None and opened.pin == last.pin:
                # Caches of this version belong to this object.
                opened = last
            elif last is not None and opened.start != EMPTY:
                segments = opened.segments + last.segments
                opened = replace(opened, start=EMPTY, segments=segments)
            found.append(opened)
        self.keep(found)
        return found

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
        if not alone and now and _published(now) < published[0]:
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


def version_after(batch: int, ahead: int, *, what: str) -> int:
    """Returns the state version that a batch made.

    Args:
        ahead: See `OperatorInfo.ahead`.

    Raises:
        ConfigError: The store began later.
    """
    version = batch + ahead
    if version < 1:
        raise ConfigError(
            what,
            found=f"the store began with batch {1 - ahead}",
            advice="Give that batch or a later one.",
        )
    return version


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


def _unclear(found: str, advice: str) -> ConfigError:
    return ConfigError(_CHOOSING, found=found, advice=advice)


def which_of(given: Mapping[str, Any], version: int | None) -> VersionRequest:
    """Returns the version that the arguments of a call ask for.

    Raises:
        TypeError: There is no such argument.
        ConfigError: See `VersionRequest`.
    """
    return NEWEST if version is None and not given else VersionRequest(version, **given)
