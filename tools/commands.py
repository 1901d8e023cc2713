"""Runs a program to its end, and raises the caller's error where the program fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 600
_SHOWN_MAX = 4000


def output_of(
    command: Sequence[str | Path],
    error: type[Exception],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> str:
    """Returns the standard output of a command that has to succeed.

    Args:
        error: Class of the error.
        variables: Environment variables besides those of this process.

    Raises:
        error: The command is missing, failed, or took too long. The message has the end of its
            output.
    """
    called = " ".join(map(str, command[:3]))
    try:
        ended = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise error(f"there is no program {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise error(f"`{called} …` did not end within {limit_s:g} s") from None
    if ended.returncode != 0:
        shown = f"{ended.stdout}{ended.stderr}".strip()[-_SHOWN_MAX:]
        raise error(f"`{called} …` failed with {ended.returncode}:\n{shown}")
    return ended.stdout
