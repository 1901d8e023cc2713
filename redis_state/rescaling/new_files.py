"""Files of the new partitions of a bounded store, whose blocks pass Redis by; no pyspark."""

from __future__ import annotations

from redis_state.batches.driver import PLACE
from redis_state.config import Config
from redis_state.files import Folder
from redis_state.maintain.purged_files import forget_files, note_coming_files
from redis_state.places import Places, places_by, places_for_return
from redis_state.places.room import bounds_of, share_of
from redis_state.places.writer import check_reached, new_folder
from redis_state.protocol import RegisteredRun
from redis_state.rescaling.checkpoints import RescaledCheckpoint, RescaledStore


def places_of_copy(store: RescaledStore, config: Config, partitions: int) -> Places | None:
    """Returns where the files of the new partitions go; ``None`` if the store has no bound.

    Args:
        config: Its `redis_memory` bounds the store from then on.

    Raises:
        ConfigError: The bound is too small for the partitions, or has no folder; or the folder is
            not there on this machine.
    """
    if config.redis_memory is not None:
        share_of(config.redis_memory, partitions)
    else:
        if not any(bounds_of(store.client, store.ids)):
            return None
    found = places_for_return(store.client, store.gen, config.places_folder, tenant=store.tenant)
    if found is None:
        return places_by(config)
    if config.places_folder is None:
        advice = "Rescale the store where that folder is mounted."
        check_reached(found, store.gen, attempted=store.what, advice=advice)
    return found


def begin_files(
    store: RescaledStore, copy: RescaledCheckpoint, places: Places, run: RegisteredRun
) -> Folder:
    """Makes the new checkpoint known before its first file; all that Redis gets expires.

    Files that a call leaves which is killed are noted like those of a purged checkpoint.

    Raises:
        ConfigError: The folder cannot be written.
        UnavailableError: The file system does not answer.
    """
    note_coming_files(
        store.client, copy.gen, places, opened=store.newest.version, tenant=store.tenant
    )
    store.describe(copy, run, places)
    store.client.call(store.what, [("HSET", store.query, f"moving:{PLACE}", copy.gen)])
    return new_folder(places, copy.gen)


def end_files(store: RescaledStore, gen: str) -> None:
    """Removes the note of `begin_files`, once the store belongs to the new checkpoint for good."""
    forget_files(store.client, gen, tenant=store.tenant)
