"""JSON files of an export that carry their own checksum, and checks of the values in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from redis_state.errors import FormatError
from redis_state.exports.folder import ExportFolder

FORMAT = 1
JSON_BYTES_MAX = 1 << 30


def sealed(content: dict[str, Any]) -> bytes:
    """Encodes JSON with the number of the format, and the SHA-256 of both."""
    content = {"format": FORMAT} | content
    return json.dumps(content | {"sha256": _seal(content)}, indent=1).encode()


def read_sealed(folder: ExportFolder, name: str) -> dict[str, Any]:
    """Reads a file that `sealed` encoded.

    Raises:
        NotFoundError: There is no such file.
        FormatError: The file is damaged.
    """
    raw = folder.read(name, most=JSON_BYTES_MAX)
    try:
        content = json.loads(raw)
        seal = content.pop("sha256")
        whole = seal == _seal(content) and content["format"] == FORMAT
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise damaged(folder, f"{name} is damaged, or was written by a newer release")
    return dict(content)


def _seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def damaged(folder: ExportFolder, found: str) -> FormatError:
    """Builds the error for an export that cannot be used."""
    return FormatError(
        f"reading the export in {folder}",
        found=found,
        advice="No state that was there has changed. Export again, or copy the folder from its "
        "source again; then repeat the command.",
    )


def text(value: object) -> str:
    """Returns a text; raises `TypeError` for any other value."""
    if not isinstance(value, str):
        raise TypeError
    return value


def whole(value: object, most: int = (1 << 63) - 1) -> int:
    """Returns a whole number from 0 to `most`; raises `TypeError` for any other value."""
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError
    return value


def matching(pattern: re.Pattern[str], value: object) -> str:
    """Returns a text that matches a pattern; raises `TypeError` or `ValueError`."""
    found = text(value)
    if not pattern.fullmatch(found):
        raise ValueError
    return found
