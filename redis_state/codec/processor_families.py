"""Names of the families beside the variables of a processor (docs/format.md, 10.6)."""

from __future__ import annotations

NOTES = "$batch"
"""Of each partition: event times, by which the watermark goes."""

TIMERS = "$timers"
"""Timers by their times."""

TIMERS_BY_GROUP = "$timers of groups"
"""The same timers by their groups."""

EXPIRY_OF = "$expiry of "
"""What stands in front of a variable's name: the family that says when its rows end."""
