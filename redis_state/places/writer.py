"""File ``_writer`` of a folder, by which movers recognize the folder of a Python store."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis_state.errors import ConfigError, UnavailableError
from redis_state.files import Folder, folder_at
from redis_state.places.settings import Places

NAME = "_writer"
"""Name of the file in ``<folder>/<gen>``; its content is the gen."""
_BYTES_MAX = 1024

log = logging.getLogger(__name__)


def mark_folder(
    places: Places, gen: str, is_gone: Callable[[Folder], bool] = lambda _: False
) -> bool:
    """Creates the file, in the process that declares the folder.

    Args:
        is_gone: Returns whether the folder has files that are not there: its disk is not mounted.

    Returns:
        False if the folder does not answer, is gone or cannot be written: that must not stop a
        batch.
    """
    raw = gen.encode()
    try:
        folder = places.folder_of(gen)
        if folder.read(NAME, most=_BYTES_MAX) == raw:
            return True
        if is_gone(folder):
            log.warning(
                "%s: history stays in Redis: the folder, which has files, is not there. Mount it",
                folder,
            )
            return False
        if folder.create(NAME, raw):
            return True
        if folder.read(NAME, most=_BYTES_MAX) != raw:
            # A process was killed while creating the file.
            folder.write(NAME, raw)
    except (ConfigError, UnavailableError) as error:
        log.warning("%s: history stays in Redis: %s", places.folder, error)
        return False
    return True


def new_folder(places: Places, gen: str) -> Folder:
    """Returns the folder for the files of a new Python store, with the file that marks it.

    Raises:
        ConfigError: The folder cannot be written.
        UnavailableError: The file system does not answer.
    """
    mark_folder(places, gen)
    check_folder(places, gen)
    return places.folder_of(gen)


def check_reached(places: Places, gen: str, *, attempted: str, advice: str) -> None:
    """Checks that a default folder exists, and is not an empty path without its mount.

    Raises:
        ConfigError: The folder is missing or empty.
        UnavailableError: The file system does not answer.
    """
    own = places.folder_of(gen)
    folder = folder_at(places.folder, storage_options=places.storage_options)
    if own.items() is None and not folder.items():
        raise ConfigError(
            attempted,
            found=f"the query has its files in {folder}, which is not there on this machine",
            advice=f"Nothing was changed. {advice}",
        )


def check_folder(places: Places, gen: str) -> None:
    """Checks that a folder is the one that the store's process declared; creates nothing.

    Raises:
        ConfigError: The file is missing, or of another checkpoint.
        UnavailableError: The file system does not answer.
    """
    folder = places.folder_of(gen)
    if folder.read(NAME, most=_BYTES_MAX) != gen.encode():
        raise ConfigError(
            "moving segments into a file",
            found=f"{folder} is not the folder of this store on this machine",
            advice="Nothing was moved. Run the maintenance where the folder is mounted.",
        )
