"""The vectors of tests/vectors/unsafe_row.json, for the tests of rows and of hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS_DIR = Path(__file__).resolve().parent.parent / "vectors"
FILE = json.loads((VECTORS_DIR / "unsafe_row.json").read_text("utf-8"))
VECTORS: list[dict[str, Any]] = FILE["vectors"]
PARTITIONS: int = FILE["partitions"]
NO_LOOKUP = ("array", "interval", "map", "nothing", "collated")


def named(name: str) -> dict[str, Any]:
    return next(vector for vector in VECTORS if vector["name"] == name)


def can_be_looked_up(vector: dict[str, Any]) -> bool:
    """Returns whether a row can be looked up by the values of all its columns."""
    if vector["name"] in ("day-time intervals", "year-month intervals"):
        return True
    return not any(word in vector["name"] for word in NO_LOOKUP) and "seventy" not in vector["name"]
