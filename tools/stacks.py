"""Position of a hanging test: one line from pages of stacks, as CI may show only the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

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


def stood(stacks: Iterable[str]) -> str:
    """Returns the positions of the threads that run tests, queries or tasks.

    For each thread these are the innermost frames of the project's code and the outermost, which is
    the test. A thread without such frames has Spark's innermost frame.
    """
    shown = []
    for frames in _threads(stacks):
        places = [place for place, _ in groupby(_places(frames))]
        if len(places) > _PLACES_MAX:
            places = [*places[: _PLACES_MAX - 1], places[-1]]
        shown.append(" < ".join(places) or next(_places(frames, _SPARK_FRAME), ""))
    return "; ".join(filter(None, dict.fromkeys(shown))) or "no stack of ours"


def _threads(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the frames of each thread of interest, innermost first."""
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
