"""What a suite's output says of its failures, in a line each: a CI page may show the end only."""

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
_TEST_THREAD = re.compile(r'^"ScalaTest-main|^Current thread 0x')
_JAVA_FRAME = re.compile(
    r"^\s+at (?:\S+/)?org\.(?:redisstate|apache\.spark\.sql\.redisstate)\S*\((\S+)\)"
)
_PYTHON_FRAME = re.compile(r'^\s+File ".*?((?:tests|redis_state)/[^"]+)", line (\d+) in (\S+)')
_PLACES_MAX = 4
_LENGTH_MAX = 200


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
            found.append(f"{late[1]}{suite and f' in {suite}'}: {_stood(lines[i + 1 :])}")
    return [line[:_LENGTH_MAX] for line in dict.fromkeys(found)]


def _stood(lines: Iterable[str]) -> str:
    """The innermost places of our own code and the outermost, which is the test."""
    places = [place for place, _ in groupby(_places(lines))]
    shown = places if len(places) <= _PLACES_MAX else [*places[: _PLACES_MAX - 1], places[-1]]
    return " < ".join(shown) or "no stack of ours"


def _places(lines: Iterable[str]) -> Iterator[str]:
    """Innermost first, of the thread that runs the tests."""
    tests = False
    for line in lines:
        if _THREAD.match(line):
            tests = bool(_TEST_THREAD.match(line))
        elif not tests:
            continue
        elif frame := _JAVA_FRAME.match(line):
            yield frame[1]
        elif frame := _PYTHON_FRAME.match(line):
            yield f"{frame[1]}:{frame[2]} {frame[3]}"
