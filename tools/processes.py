"""Processes of a session, as Linux lists them; elsewhere the list is empty.

All processes that a suite starts share its session, including JVMs and servers of tests. The
standard library cannot list them, and psutil would be a dependency for these few lines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def members(session: int) -> Iterator[tuple[int, str]]:
    """Yields id and program name of each process that has not ended."""
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
