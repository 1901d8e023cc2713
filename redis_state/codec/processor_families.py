"""Names of a processor's families other than its state variables (docs/format.md, section 10.6)."""

from __future__ import annotations

NOTES = "$batch"
"""Event times of each partition, from which the watermark is computed."""

TIMERS = "$timers"
"""Timers, ordered by time."""

TIMERS_BY_GROUP = "$timers of groups"
"""Timers, ordered by group."""

ALL_EXPIRE = "all"
"""Member of the value schema of an `EXPIRY_OF` family: every row of the variable has an expiry."""

EXPIRY_OF = "$expiry of "
"""Prefix of a variable's name that names the family of its expiry times."""
