"""Opens a folder by its address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis_state.errors import ConfigError
from redis_state.files.folder import Folder
from redis_state.files.local import LocalFiles
from redis_state.files.urls import LOCAL, place_of

_OPTIONS_BYTES_MAX = 1 << 20
_AUTHORITY = "://"


def folder_at(address: str, *, storage_options: Mapping[str, Any] | None = None) -> Folder:
    """Opens a folder by Spark's address, without a request to the file system.

    Args:
        address: A path, or `file:`, `s3a://`, `gs://`, `abfss://`, `hdfs://` and so on. Other
            addresses go to fsspec unchanged.
        storage_options: Options of fsspec's file system, such as `endpoint_url` of S3. A name that
            is the beginning of an address, such as `s3a://`, has those of its file system alone.

    Raises:
        ConfigError: A package is missing, or the address or an option is wrong.
    """
    place = place_of(address)
    if place.protocol == LOCAL:
        path = str(Path(place.path).absolute())
        return Folder(LocalFiles(), path, path)
    from redis_state.files.remote import RemoteFiles

    files = RemoteFiles(place, options_at(address, storage_options or {}))
    return Folder(files, files.root.rstrip("/"), address.rstrip("/"))


def options_at(address: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for an address, of which those with a longer name win.

    Raises:
        ConfigError: The options of an address are no object.
    """
    found = {name: value for name, value in given.items() if _AUTHORITY not in name}
    for name in sorted(set(given) - set(found), key=len):
        options = given[name]
        if not isinstance(options, Mapping):
            raise ConfigError(
                "reading the storage options",
                found=f"those of {name} are not a JSON object",
                advice='Write {"s3a://": {"endpoint_url": "…"}}.',
            )
        if address.startswith(name):
            found |= options
    return found


def is_local(address: str) -> bool:
    """Returns whether the address is a folder of this machine, which takes no options.

    Raises:
        ConfigError: The address is wrong.
    """
    return place_of(address).protocol == LOCAL


def is_absolute(address: str) -> bool:
    """Returns whether the address is the same folder in every working directory.

    Raises:
        ConfigError: The address is wrong.
    """
    place = place_of(address)
    return place.protocol != LOCAL or Path(place.path).is_absolute()


def read_storage_options(path: str) -> dict[str, Any]:
    """Reads the options of a file system from a JSON file. Secrets then stay off the command line.

    Raises:
        ConfigError: The file cannot be read, or is not a JSON object.
    """
    what = f"reading the storage options in {path}"
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_OPTIONS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            what, found=f"{error.strerror or type(error).__name__}", advice="Check its path."
        ) from error
    try:
        found = json.loads(raw) if len(raw) <= _OPTIONS_BYTES_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # The parser's message could quote a secret.
        raise ConfigError(
            what,
            found="it is not a JSON object",
            advice='Write the options of the fsspec file system, such as {"endpoint_url": "…"}.',
        ) from None
    return found
