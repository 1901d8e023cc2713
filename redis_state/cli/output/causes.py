"""Prints a cause that `why-growing` or `why-slow` found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.reader import Cause, SlowCause
from redis_state.status import figures

if TYPE_CHECKING:
    from rich.console import Console

_PARTITIONS_MAX = 8


def title_of(cause: Cause | SlowCause) -> str:
    """Returns the kind of a cause, with the operator, store and partitions that have it."""
    where = "" if cause.operator is None else f", operator {cause.operator}"
    if cause.store not in (None, "default"):
        where += f", store {figures.plain(str(cause.store))}"
    if cause.partitions:
        listed = ", ".join(map(str, cause.partitions[:_PARTITIONS_MAX]))
        left = len(cause.partitions) - _PARTITIONS_MAX
        more = "" if left <= 0 else f" and {left} more"
        where += f", partition{'s' if len(cause.partitions) > 1 else ''} {listed}{more}"
    return f"{cause.kind}{where}"


def show_cause(console: Console, cause: Cause | SlowCause) -> None:
    """Prints kind, place, evidence and advice of a cause."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(title_of(cause), style="bold"))
    console.print(Padding(Text(f"{figures.plain(cause.found)}\n→ {cause.advice}"), (0, 0, 0, 2)))
