"""In-place change of the number of partitions of a Python batch store; no pyspark.

The rows are copied into the partitions of a new checkpoint, at their versions. Then the store name
is moved from the old checkpoint to the new one. Until that last step, nothing that a query reads
has changed. Leftovers of an interrupted call expire within a day.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.room import check_room
from redis_state.codec import Codec
from redis_state.config import Config
from redis_state.errors import UsageError
from redis_state.maintain.activity import refuse_if_used
from redis_state.rescaling.checkpoints import RescaledStore
from redis_state.rescaling.new_files import begin_files, end_files, places_of_copy
from redis_state.rescaling.placing import GroupOf
from redis_state.rescaling.switch import expire_leftover, finish, leave
from redis_state.rescaling.versions import KeyMeaning, copy_rows, count_rows, versions_to_copy

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options


@dataclass(frozen=True, slots=True)
class StoreRescale:
    """Result of a change of the number of partitions, or of its dry run.

    Attributes:
        gen: Id of the checkpoint before the change.
        new_gen: Id of the new checkpoint; empty if nothing was changed.
        batch: Newest batch, the last one in the copied state.
        before: Number of partitions before the change.
        rows: Number of rows by new partition, without those of internal families, such as timers.
    """

    name: str
    gen: str
    new_gen: str
    batch: int
    before: int
    rows: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Returns the number of partitions after the change."""
        return len(self.rows)


def rescale_store(
    name: str,
    partitions: int,
    *,
    url: str | None = None,
    group_of: GroupOf | None = None,
    codec: Codec | None = None,
    dry_run: bool = False,
    force: bool = False,
    **options: Unpack[Options],
) -> StoreRescale:
    """Changes the number of partitions of a batch store.

    The store is one of `transform_with_state` or `foreach_batch_with_state_store`. The query must
    be stopped after a complete batch. At its next start the query continues with all of its state;
    leave ``partitions`` out of its call, or give the new number. The old state stays in Redis under
    the checkpoint id `StoreRescale.gen` until ``redis-state purge --gen`` removes it.

    Every row is checked. A row whose partition differs from Spark's hash of its key columns fails
    the call, and nothing is changed.

    The state of a store with a bound goes into files, past Redis. So does that of any store, if
    the options ``redis_memory`` and ``places_folder`` are given.

    Args:
        name: Name of the store.
        group_of: For a store that your function writes: maps a key of the state to the values of
            the key columns, in their order. ``None`` takes keys that are these values, or tuples
            that begin with them, if enough keys prove this.
        codec: Codec of such a store, if you wrote the codec.
        dry_run: Reads and counts, but changes nothing.
        force: Skips the check whether the query seems to run.
        url: The server; ``None`` uses the server of the environment.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        NotFoundError: The store does not exist.
        UsageError: The store seems to be in use, already has that many partitions, is a store
            without a query, is ephemeral, or has rows whose partition cannot be determined. Also
            raised after the call has finished an interrupted call for another number.
        StateError: A partition does not hold the version of the newest batch.
        ConflictError: The query was started in the meantime.
        ConfigError: The bound is too small, or the folder for files cannot be written.
        FullError: The server has no memory for both checkpoints; found before anything is written.
        UnavailableError: Written data was lost before the last step.
    """
    return rescale_with(
        options_table.resolve(None, url, options),
        name,
        partitions,
        group_of=group_of,
        codec=codec,
        dry_run=dry_run,
        force=force,
    )


def rescale_with(
    config: Config,
    name: str,
    partitions: int,
    *,
    group_of: GroupOf | None = None,
    codec: Codec | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> StoreRescale:
    """Runs `rescale_store` with options that are already checked."""
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        store = RescaledStore.find(client, name, tenant)
        moved = store.moved_to()
        if moved is not None and not dry_run:
            # An earlier call took the decisive step; only the rest is left to do.
            return _finish_earlier(store, moved, partitions)
        store.check(partitions)
        if not dry_run:
            refuse_if_used(client, store.gen, tenant=tenant, attempted=store.what, force=force)
        meaning = KeyMeaning(group_of, codec)
        versions, size = versions_to_copy(store)
        rows = count_rows(store, versions[0], partitions, meaning)
        if dry_run:
            return _result(store, "", store.newest.number, rows)
        places = places_of_copy(store, config, partitions)
        check_room(client, 0 if places else size, what=store.what)
        new_gen = uuid.uuid4().hex
        run = store.take()
        expire_leftover(store)
        copy = store.checkpoint(new_gen, partitions)
        folder = None if places is None else begin_files(store, copy, places, run)
        pins = copy_rows(store, copy, versions, meaning, folder)
        copy.take(run, pins, retained=store.retained)
        store.describe(copy, run, places)
        leave(store, copy, pins, run)
        return _finished(store, new_gen)


def _finished(store: RescaledStore, new_gen: str) -> StoreRescale:
    # First, since a call that dies behind the last step is not finished by another one.
    end_files(store, new_gen)
    return _result(store, new_gen, *finish(store, new_gen))


def _finish_earlier(store: RescaledStore, new_gen: str, partitions: int) -> StoreRescale:
    """Finishes an interrupted call.

    Raises:
        UsageError: The interrupted call was finished, but had another number of partitions.
    """
    done = _finished(store, new_gen)
    if done.partitions != partitions:
        raise UsageError(
            store.what,
            found=f"an interrupted call for {done.partitions} partitions was finished first, "
            f"so the store has {done.partitions} now",
            advice=f"Run it again if {partitions} partitions are still wanted.",
        )
    return done


def _result(store: RescaledStore, new_gen: str, batch: int, rows: tuple[int, ...]) -> StoreRescale:
    return StoreRescale(store.name, store.gen, new_gen, batch, store.newest.partitions, rows)
