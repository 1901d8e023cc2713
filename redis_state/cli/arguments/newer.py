"""Notes on standard error about versions that the query has not confirmed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from redis_state.errors import RedisStateError
from redis_state.reader.version_request import CONFIRMED
from redis_state.reader.view import QueryView


def reads_confirmed(arguments: argparse.Namespace) -> bool:
    """Returns whether the arguments leave the version to the query: the newest confirmed one."""
    return arguments.version is None and arguments.at == CONFIRMED


def tell_if_newer(is_there: Callable[[], bool], *, what: str, advice: str) -> None:
    """Prints one line if the newest published version has what the confirmed one lacks.

    Args:
        is_there: Reads the newest published version.
        what: What was looked for.
        advice: The way to read it.
    """
    try:
        found = is_there()
    except RedisStateError:
        # The answer from the confirmed version stands, whatever happens to the newer one.
        return
    if found:
        print(
            f"A newer version, published but not yet confirmed, has {what}: {advice}.",
            file=sys.stderr,
        )


def tell_uncommitted(view: QueryView) -> None:
    """Prints one line: whether rows of the running batch are read, which may be taken back."""
    if view.uncommitted:
        text = (
            f"Uncommitted: {view.uncommitted} partitions have rows of the running batch, which may "
            "be taken back."
        )
    else:
        text = "Committed: no rows of a running batch are published at the moment."
    print(text, file=sys.stderr)
