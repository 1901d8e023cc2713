"""Previews: rows of the running batch above a committed version (docs/format.md, section 16).

A preview names immutable slices, which read as deltas above the committed version. So one look at
it, which a script takes as a whole, gives rows of one attempt as they were at one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import words
from redis_state.backend.script import script
from redis_state.errors import FormatError, Kind, StateError
from redis_state.format.entry import Segment, parse_entry
from redis_state.ids import Pin, is_uid, text_number
from redis_state.protocol.opening import Opened, made_up_now
from redis_state.protocol.refusal import refusal

_WHAT = "reading rows of the running batch"
_MALFORMED = "the answer of its script is malformed"


@dataclass(frozen=True, slots=True)
class _Beyond:
    """Rows of a partition above a version.

    Attributes:
        epoch: Epoch of the run that holds the partition.
        uid: The attempt; empty if there is none.
        number: Number of its preview; 0 if the attempt is committed.
        slices: Newest first.
    """

    epoch: int
    uid: str = ""
    number: int = 0
    slices: tuple[Segment, ...] = ()


EVERY_FIELD = "publishEvery"
"""Registry field with the option of the newest run, in ms; 0 or absent if it sets no previews."""


def with_previews(client: Client, opened: Sequence[Opened], *, alone: bool) -> list[Opened]:
    """Adds to committed versions what the running batch has written on top of them so far.

    A partition whose task has committed its part of the batch is opened at that next version.

    Args:
        opened: All partitions that batches move together, at one version.
        alone: Each partition has versions of its own.

    Raises:
        FormatError: A preview is damaged, or a partition is of another format.
        UnavailableError: Redis gave no answer before the deadline.
    """
    calls = [(keys.meta(one.id), (str(one.pin.version), one.pin.uid)) for one in opened]
    replies = client.call(_WHAT, script("previewed").many(calls)) if calls else []
    beyond = [
        _read(one, words(_WHAT, reply, where=str(one.id)))
        for one, reply in zip(opened, replies, strict=True)
    ]
    # A run takes one partition after the other: rows of an earlier run are not those of its batch.
    newest = max((one.epoch for one in beyond), default=0)
    shown = [
        (one, more)
        for one, more in zip(opened, beyond, strict=True)
        if more.uid and (alone or more.epoch == newest)
    ]
    below = {one.id: one for one, _ in shown}
    found = {one.id: _previewed(one, more) for one, more in shown if more.number}
    wanted = [
        replace(one, pin=Pin(one.pin.version + 1, more.uid))
        for one, more in shown
        if not more.number
    ]
    for one in _committed(client, wanted):
        found[one.id] = replace(one, below=below[one.id])
    return [found.get(one.id, one) for one in opened]


def _previewed(opened: Opened, beyond: _Beyond) -> Opened:
    pin = Pin(opened.pin.version + 1, f"{beyond.uid}.{beyond.number}")
    return replace(opened, pin=pin, segments=beyond.slices + opened.segments, below=opened)


def _committed(client: Client, wanted: Sequence[Opened]) -> list[Opened]:
    """Opens versions without those that are gone: the query went back since, or far ahead."""
    try:
        return made_up_now(client, wanted)
    except StateError as error:
        if error.kind not in (Kind.STATE_LOST, Kind.VERSION_EXPIRED):
            raise
    if len(wanted) == 1:
        return []
    return [found for one in wanted for found in _committed(client, [one])]


def _read(opened: Opened, answer: list[str]) -> _Beyond:
    where = str(opened.id)
    match answer:
        case ["NONE", epoch]:
            found = [text_number(epoch)]
            beyond = _Beyond(found[0] or 0)
        case ["NEXT", epoch, uid]:
            found = [text_number(epoch), is_uid(uid) or None]
            beyond = _Beyond(found[0] or 0, uid)
        case ["OK", epoch, uid, number, *listed] if len(listed) % 2 == 0:
            found = [text_number(epoch), is_uid(uid) or None, text_number(number) or None]
            found += [text_number(slice_) or None for slice_ in listed[::2]]
            version = opened.pin.version + 1
            slices = tuple(
                Segment(False, version, uid, parse_entry(entry), slice=int(number))
                for number, entry in zip(listed[::2], listed[1::2], strict=True)
                if text_number(number)
            )
            beyond = _Beyond(found[0] or 0, uid, found[2] or 0, slices)
        case ["OK" | "NEXT" | "NONE", *_]:
            found = [None]
        case _:
            raise refusal(_WHAT, answer, where=where, version=opened.pin.version)
    if None in found:
        raise FormatError(_WHAT, found=_MALFORMED, where=where)
    return beyond
