"""The failures in a suite's output, one line each: a CI page may show only the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

_PYTEST = re.compile(r"^(?:FAILED|ERROR) (\S+(?: - .*)?)$")
_SCALATEST_SUITE = re.compile(r"^(\w+):$")
_SCALATEST = re.compile(r"^- (.*) \*\*\* FAILED \*\*\*")
_ABORTED = re.compile(r"^(\S.*) \*\*\* ABORTED \*\*\*")
_LIMIT = re.compile(r"^error: (still running after \d+ s); stacks follow$")
_THREAD = re.compile(r'^"|^(?:Thread|Current thread) 0x')
_OF_INTEREST = re.compile(
    r'^"(?:ScalaTest-main|stream execution thread|Executor task launch worker)|^Current thread 0x'
)
_OUR_FRAME = re.compile(
    r"^\s+at (?:\S+/)?org\.(?:redisstate|apache\.spark\.sql\.redisstate)\S*\((\S+)\)"
)
_SPARK_FRAME = re.compile(r"^\s+at (?:\S+/)?org\.apache\.spark\.\S*\((\S+)\)")
_PYTHON_FRAME = re.compile(r'^\s+File ".*?((?:tests|redis_state)/[^"]+)", line (\d+),? in (\S+)')
_PLACES_MAX = 4
_LENGTH_MAX = 300


def failures_in(output: str) -> list[str]:
    """Names of failed tests, and where a suite stood that ran into its limit."""
    found = []
    suite = ""
    lines = output.splitlines()
    for i, line in enumerate(lines):
        if header := _SCALATEST_SUITE.match(line):
            suite = header[1]
        elif failed := _PYTEST.match(line):
            found.append(failed[1])
        elif failed := _SCALATEST.match(line):
            found.append(f"{suite}: {failed[1]}")
        elif failed := _ABORTED.match(line):
            found.append(f"{failed[1]} aborted")
        elif late := _LIMIT.match(line):
            found.append(f"{late[1]}{suite and f' in {suite}'}: {stood(lines[i + 1 :])}")
    return [line[:_LENGTH_MAX] for line in dict.fromkeys(found)]


def stood(stacks: Iterable[str]) -> str:
    """Where the threads stood that run tests, queries or tasks.

    Of each thread the innermost places of our own code and the outermost, which is the test; where
    there is none of ours, Spark's innermost.
    """
    shown = []
    for frames in _threads(stacks):
        places = [place for place, _ in groupby(_places(frames))]
        if len(places) > _PLACES_MAX:
            places = [*places[: _PLACES_MAX - 1], places[-1]]
        shown.append(" < ".join(places) or next(_places(frames, _SPARK_FRAME), ""))
    return "; ".join(filter(None, dict.fromkeys(shown))) or "no stack of ours"


def _threads(lines: Iterable[str]) -> Iterator[list[str]]:
    """The frames of each thread of interest, innermost first."""
    frames: list[str] | None = None
    for line in lines:
        if _THREAD.match(line):
            if frames:
                yield frames
            frames = [] if _OF_INTEREST.match(line) else None
        elif frames is not None:
            frames.append(line)
    if frames:
        yield frames


def _places(frames: Iterable[str], java: re.Pattern[str] = _OUR_FRAME) -> Iterator[str]:
    for line in frames:
        if frame := java.match(line):
            yield frame[1]
        elif frame := _PYTHON_FRAME.match(line):
            yield f"{frame[1]}:{frame[2]} {frame[3]}"
