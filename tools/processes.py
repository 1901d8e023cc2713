"""Processes of a session, as Linux lists them; elsewhere there are none.

What a suite starts, it shares a session with, JVMs and servers of tests included; the standard
library finds none of them, and psutil would be a dependency for these lines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def members(session: int) -> Iterator[tuple[int, str]]:
    """Id and program name of each process that has not ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        program = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(stat.parent.name), program


def signal_all(session: int, number: signal.Signals) -> None:
    for pid, _ in members(session):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
