"""Names of the files in the folder of an export."""

from __future__ import annotations

import re

from redis_state import keys

MANIFEST = "manifest.json"
PROGRESS = "_progress"
DATA = "data"
PLAN = f"{PROGRESS}/plan.json"
WRITER = f"{PROGRESS}/writer"
"""Names the process that makes the export; a process that reads another name ends."""

_PART = r"[^/.][^/]*"
ROWS_FILE = re.compile(rf"{DATA}/{_PART}/{_PART}/{_PART}\.parquet")
"""Path of a file with rows."""

_NAME_MAX = 100
_NAME_KEPT = 80


def partition_file(operator: int, store: str, partition: int) -> str:
    """Path of the file that marks a partition as exported."""
    return f"{PROGRESS}/{operator}-{partition}-{keys.store_hash(store)}.json"


def family_folder(operator: int, store: str, family: str) -> str:
    """Path of the folder with the files of a family."""
    return f"{DATA}/{operator}-{_safe(store)}/{_safe(family)}"


def _safe(name: str) -> str:
    """Escapes a name for use as one part of a path."""
    plain = "".join(
        chr(byte) if re.match(r"[0-9A-Za-z_.-]", chr(byte)) and byte < 0x80 else f"%{byte:02x}"
        for byte in name.encode()
    )
    if plain.startswith("."):
        plain = f"%2e{plain[1:]}"
    if not plain:
        return "%"
    return plain if len(plain) <= _NAME_MAX else f"{plain[:_NAME_KEPT]}%{keys.store_hash(name)}"
