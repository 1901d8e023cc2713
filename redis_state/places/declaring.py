"""Declares the folder of a query's files in Redis: for a Python store, or for a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from redis_state.backend.client import Client
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.files import folder_at, is_absolute
from redis_state.ids import PartitionId
from redis_state.places.moving import rows_of
from redis_state.places.settings import Places, places_of, set_places

_FILES = "files"
_OPTION = "option 'placesFolder'"
_LOOKED_FOR_MAX = 3
"""Number of used files of a partition to find in a new folder; a single one may be lost."""


def declare(
    client: Client,
    gen: str,
    config: Config,
    partitions: Callable[[], Iterable[PartitionId]],
    *,
    tenant: str = "",
) -> None:
    """Writes the settings of a writer's options, before its first file is announced.

    Without ``history=files`` no further history is moved; segments in files stay there.

    Args:
        partitions: Returns the partitions of the checkpoint, which may have files.

    Raises:
        ConfigError: The options contradict each other, or name a folder without the files of the
            checkpoint.
        UnavailableError: Redis does not answer, or another folder does not.
    """
    found = places_of(client, gen, tenant=tenant)
    if needs_files(config):
        places = places_by(config)
        if found is not None and found.folder != places.folder:
            _check_moved(client, gen, found, places, partitions())
        if found != places:
            set_places(client, gen, places, tenant=tenant)
    elif found is not None and found.moves:
        set_places(client, gen, replace(found, moves=False), tenant=tenant)


def needs_files(config: Config) -> bool:
    """Returns whether a store with these options moves segments into files."""
    return config.history == _FILES or config.redis_memory is not None


def places_by(config: Config) -> Places:
    """Returns the settings in the options of a Python store that needs files.

    Raises:
        ConfigError: The folder is missing or relative, or the checkpoint is ephemeral.
    """
    is_bounded = config.redis_memory is not None
    name = "redisMemory" if is_bounded else "history"
    what = f"option '{name}'"
    if config.ephemeral:
        raise ConfigError(
            what,
            found="an ephemeral checkpoint has no history in files"
            if not is_bounded
            else "an ephemeral checkpoint has no files",
            advice=f"Leave out '{name}' or 'ephemeral'.",
        )
    if config.places_folder is None:
        raise ConfigError(
            what,
            found=f"{name if is_bounded else 'history=files'} needs a folder, and 'placesFolder' "
            "is missing",
            advice="Give 'placesFolder', an address that every writer and reader reaches.",
        )
    address = _spelled(config.places_folder)
    moves = config.history == _FILES
    return Places(address, config.places_grace, moves=moves, deletes=config.places_delete)


def places_for_return(
    client: Client, gen: str, address: str | None, *, tenant: str = ""
) -> Places | None:
    """Returns the settings for the files of a checkpoint that is restored or imported.

    Args:
        address: Folder that the user names; ``None`` without one.

    Returns:
        ``None`` if neither the query nor the user names a folder.

    Raises:
        ConfigError: The address is relative, or the query has its files in another folder.
    """
    known = places_of(client, gen, tenant=tenant)
    if address is None:
        return known
    wanted = Places(_spelled(address), moves=False)
    if known is not None and known.folder != wanted.folder:
        raise ConfigError(
            _OPTION,
            found=f"the files of checkpoint {gen} are in {known.folder}",
            advice="Nothing was changed. Give that folder.",
        )
    return known or wanted


def keep_places(client: Client, gen: str, places: Places, *, tenant: str = "") -> None:
    """Writes settings into a query that has none."""
    if places_of(client, gen, tenant=tenant) is None:
        set_places(client, gen, places, tenant=tenant)


def _spelled(address: str) -> str:
    """Returns an address as Hadoop writes it."""
    if not is_absolute(address):
        raise ConfigError(
            _OPTION,
            found="it is a relative path, which is another folder in another working directory",
            advice="Give an absolute path, or an address such as s3a://bucket/segments.",
        )
    return folder_at(address).spelling()


def _check_moved(
    client: Client, gen: str, before: Places, wanted: Places, ids: Iterable[PartitionId]
) -> None:
    """Accepts another folder if it has a used file, or if no file is used."""
    folder, has_used = wanted.folder_of(gen), False
    for id_ in ids:
        used = [row.file for row in rows_of(client, id_) if row.state == "u"]
        if any(folder.has(file) for file in used[:_LOOKED_FOR_MAX]):
            return
        has_used = has_used or bool(used)
    if has_used:
        raise ConfigError(
            _OPTION,
            found=f"the files of checkpoint {gen} are in {before.folder}, and {wanted.folder} has "
            "none of them",
            advice="Give the folder that has the files; or move all of them to the new folder "
            "first, then start again.",
        )
