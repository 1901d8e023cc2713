"""Runs of the query of a schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """A run of the query.

    Attributes:
        number: Later runs have greater ones.
        by_driver: Whether it was registered before its tasks started.
        format: Its checkpoint format, 1 or 2.
    """

    number: int
    run_id: str
    by_driver: bool
    format: int = 1
