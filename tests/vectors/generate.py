"""Writes the vectors of docs/format.md, which every implementation reads.

Run it from the project's folder:

    python -m tests.vectors.generate [--check]

Bytes are hexadecimal. Blocks are kept uncompressed, except where noted, so that the files do not
depend on a compressor's release; what a release compresses, each reader must read all the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.vectors import of_files, of_pieces, of_segments

FOLDER = Path(__file__).parent
FILES: Mapping[str, Callable[[], Any]] = {
    "blocks.json": of_pieces.blocks,
    "signatures.json": of_pieces.signatures,
    "rows.json": of_pieces.rows,
    "entries.json": of_pieces.entries,
    "headers.json": of_pieces.headers,
    "buckets.json": of_pieces.buckets,
    "names.json": of_pieces.names,
    "segments.json": of_segments.segments,
    "versions.json": of_segments.versions,
    "places.json": of_files.places,
    "files.json": of_files.files,
    "filters.json": of_files.filters,
}


def text_of(name: str) -> str:
    """Expected content of the file."""
    return json.dumps(FILES[name](), indent=1, sort_keys=True) + "\n"


def stale() -> list[str]:
    """Files that hold something else."""
    return [
        name
        for name in FILES
        if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != text_of(name)
    ]


def main() -> int:
    names = stale()
    if "--check" not in sys.argv:
        for name in names:
            (FOLDER / name).write_text(text_of(name), "utf-8")
        return 0
    for name in names:
        print(f"{name} is stale: run python -m tests.vectors.generate", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
