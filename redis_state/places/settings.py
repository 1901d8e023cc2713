"""Settings of the files of a checkpoint: field `places` of its query (docs/format.md, 17)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import FormatError
from redis_state.files import Folder, folder_at

FIELD = "places"
GRACE_MS = 86_400_000
GRACE_MS_MIN = 3_600_000
FOLDER_IN_CHECKPOINT = "state/_redis_state_segments"
_FILES = "files"
_REDIS = "redis"
_QUERY_FORMAT = "1"
_WHAT = "reading where the files of a checkpoint are"


@dataclass(frozen=True, slots=True)
class Places:
    """Settings of a checkpoint's files.

    Attributes:
        folder: Absolute address of the folder, as Hadoop writes it.
        grace_ms: Time for which a condemned file stays.
        moves: True if history moves into files.
        deletes: True if condemned files are deleted.
        storage_options: Options of fsspec of the caller that opens the folder; not stored.
    """

    folder: str
    grace_ms: int = GRACE_MS
    moves: bool = True
    deletes: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The value of the field."""
        return json.dumps(
            {
                "folder": self.folder,
                "grace": self.grace_ms,
                "history": _FILES if self.moves else _REDIS,
                "delete": self.deletes,
            }
        )

    @property
    def is_local(self) -> bool:
        """True if the folder is on a file system of the machine itself."""
        return self.folder.startswith("file:")

    def folder_of(self, gen: str) -> Folder:
        """Returns the folder with the files of a checkpoint.

        Raises:
            ConfigError: The address is wrong, or a package is missing.
        """
        return folder_at(self.folder, storage_options=self.storage_options) / gen


def places_in(query: Mapping[bytes, bytes]) -> Places | None:
    """Parses the field in a query's hash; ``None`` if the query never had files.

    Raises:
        FormatError: The field is damaged.
    """
    raw = query.get(FIELD.encode())
    return None if raw is None else _parse(raw)


def places_of(client: Client, gen: str, *, tenant: str = "") -> Places | None:
    """Returns the settings of a checkpoint; ``None`` if it never had files.

    Raises:
        FormatError: The field is damaged.
        UnavailableError: Redis gave no answer before the deadline.
    """
    (raw,) = client.call(_WHAT, [("HGET", keys.query(gen, tenant=tenant), FIELD)])
    return None if raw is None else _parse(raw)


def set_places(client: Client, gen: str, places: Places, *, tenant: str = "") -> None:
    """Writes the settings of a checkpoint; does nothing in one that was purged.

    The format is written, too, since Redis may have lost all other fields of the query.
    """
    args = ["", "f", _QUERY_FORMAT, FIELD, places.text]
    client.script(
        "naming a folder for files", script("stay"), [keys.query(gen, tenant=tenant)], args
    )


def _parse(raw: bytes) -> Places:
    try:
        found = json.loads(raw.decode())
        folder, grace = found["folder"], found.get("grace", GRACE_MS)
        moves, deletes = found.get("history") == _FILES, found.get("delete") is True
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(_WHAT, found="the field 'places' of the query is damaged") from error
    if not isinstance(folder, str) or not folder or type(grace) is not int:
        raise FormatError(_WHAT, found="the field 'places' of the query is damaged")
    return Places(folder, max(GRACE_MS_MIN, grace), moves, deletes)
