"""Valid and malformed answers of the script `open`."""

from __future__ import annotations

import pytest

from redis_state.errors import ConflictError, FormatError, InternalError, Kind, StateError
from redis_state.ids import EMPTY, PartitionId, Pin, StoreId
from redis_state.protocol.opening import read_opened, read_replies

ID = PartitionId(StoreId("0" * 32, 0), 3)
FIRST = ["d:1:u1", "- 1 1 1 20 1 7 h"]
SECOND = ["d:2:u2", "u1 1 2 1 20 1 7 -"]
THIRD = ["d:3:u3", "u2 1 3 1 20 1 7 -"]
SNAPSHOT = ["s:2:u2", "w1 2 2 1 30 1 7 h"]
COMPLETE = ["d:2:u2", "u1 2 2 1 30 1 7 ch"]


def answer(at: int, *entries: list[str], start: Pin = EMPTY) -> list[str]:
    head = ["OK", str(at), f"u{at}" if at else "-", "1", "3", "1", str(start.version), start.uid]
    return head + [word for entry in entries for word in (*entry, "")]


@pytest.mark.parametrize(
    ("entries", "start"),
    [
        ((THIRD, SECOND, FIRST), EMPTY),
        ((THIRD, SNAPSHOT), EMPTY),
        ((THIRD, COMPLETE), EMPTY),
        ((THIRD, SECOND), Pin(1, "u1")),
        ((), Pin(3, "u3")),
    ],
)
def test_opened_version_lists_its_segments(entries: tuple[list[str], ...], start: Pin) -> None:
    cached = [Pin(7, "u7"), start]
    opened = read_opened(ID, answer(3, *entries, start=start), version=3, cached=cached)
    assert (opened.id, opened.pin, opened.start) == (ID, Pin(3, "u3"), start)
    assert (opened.held, opened.opened, opened.floor) == (True, 3, 1)
    assert [[one.field, one.entry.text] for one in opened.segments] == list(entries)


def test_empty_partition_opens_at_version_0() -> None:
    for reply in (["EMPTY"], answer(0)):
        opened = read_opened(ID, reply, version=None)
        assert (opened.pin, opened.segments) == (EMPTY, ())


@pytest.mark.parametrize(
    ("entries", "start"),
    [
        ((), EMPTY),
        ((THIRD, FIRST), EMPTY),
        ((THIRD, SECOND), EMPTY),
        ((SECOND, FIRST), EMPTY),
        ((THIRD, SNAPSHOT, FIRST), EMPTY),
        ((THIRD, COMPLETE, FIRST), EMPTY),
        ((THIRD, SECOND, FIRST), Pin(1, "u1")),
        ((THIRD, SECOND), Pin(1, "v1")),
        ((THIRD, ["d:2:u2", "v1 1 2 1 20 1 7 -"]), Pin(1, "v1")),
        ((THIRD, ["d:2:u2", "- 1 2 1 20 1 7 -"]), EMPTY),
        ((["d:3:u3", "u2 1 3 1 20 1 7"],), EMPTY),
    ],
)
def test_segments_that_make_up_no_version_are_refused(
    entries: tuple[list[str], ...], start: Pin
) -> None:
    with pytest.raises(FormatError):
        read_opened(ID, answer(3, *entries, start=start), version=3, cached=[Pin(1, "u1")])


@pytest.mark.parametrize(
    "reply",
    [
        ["OK"],
        answer(3, FIRST)[:-1],
        ["OK", "x", "u3", "1", "3", "1", "0", "-"],
        ["OK", "3", "-", "1", "3", "1", "0", "-"],
        ["OK", "3", "u3", "1", "", "1", "0", "-"],
    ],
)
def test_a_malformed_answer_is_refused(reply: list[str]) -> None:
    with pytest.raises(FormatError, match="malformed"):
        read_opened(ID, reply, version=3)


def test_refusal_raises_a_named_error() -> None:
    with pytest.raises(ConflictError, match="version 4 is already open"):
        read_opened(ID, ["FENCED", "opened", "4"], version=3)
    with pytest.raises(StateError, match="retention keeps version 2") as expired:
        read_opened(ID, ["VERSION_EXPIRED", "2", "9"], version=1)
    assert expired.value.kind is Kind.VERSION_EXPIRED
    with pytest.raises(InternalError):
        read_opened(ID, ["SOMETHING"], version=1)


def test_missing_version_raises_by_store_or_reader() -> None:
    with pytest.raises(
        StateError, match=r"^\[REDIS_STATE_LOST\] orders: .* newer than version 2\."
    ):
        read_opened(ID, ["STATE_LOST", "2", "0"], version=3, where="orders")
    with pytest.raises(StateError, match=r"operator 0 partition 3 .* no such version") as error:
        read_replies([ID], [[b"STATE_LOST", b"2", b"0"]], version=3)
    assert (error.value.kind, error.value.version) == (Kind.STATE_LOST, 3)
