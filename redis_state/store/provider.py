"""`StateStoreProvider`: all versions of one partition, for one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from redis_state.backend.client import Client
from redis_state.clock import SYSTEM, Clock
from redis_state.codec import MSGPACK, Codec
from redis_state.config import Config, resolve
from redis_state.errors import UsageError
from redis_state.ids import NUMBER_MAX, StateStoreProviderId, is_uid
from redis_state.places.disks import process_disk
from redis_state.places.reading import files_of
from redis_state.protocol import RegisteredRun
from redis_state.protocol.runs import check_name
from redis_state.store.api import ListStateStore, ReadStateStore, StateStore
from redis_state.store.checkpoint_link import Events, PartitionSpec
from redis_state.store.family_store import FamilyStore
from redis_state.store.local.families import family_of
from redis_state.store.local.memory_budget import MemoryBudget
from redis_state.store.maintained_server import MaintainedServer
from redis_state.store.metrics import CUSTOM_METRICS, Counters, CustomMetric
from redis_state.store.partition_state import PartitionState
from redis_state.store.partition_store import PartitionListStore, PartitionReadStore, PartitionStore

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

VERSIONS_CACHED_MAX = 2
_PARTITION_MAX = (1 << 31) - 1


class StateStoreProvider:
    """Opens the versions of one partition; thread-safe, unlike its stores.

    Nothing is sent before the first version is opened. Nothing is written to Redis before a store's
    first change or commit.

    Args:
        config: Checked options, a URL, or options by their names; or leave it out and give `url`.
        url: The server; see docs/topologies.md.
        codec: Encoding of keys and values; a partition keeps its first codec.
        lists: True if values are lists, and stores have `append`; also fixed for a partition.
        families: True if versions have many families and rows of bytes. `get_family_store` opens
            them; `codec` and `lists` are then ignored.
        expect_existing: True makes version 0 of an unknown checkpoint an error, too.
        run: The run if a driver registered it. Otherwise the run is registered at its first write,
            and may then not write on a version below the one that was opened last.
        gen: Id of the checkpoint that the run was registered for, which the name must still have;
            ``None`` accepts any.
        versions_cached_max: Number of versions that stay in this process, so that opening one of
            them or the next one reads only what is new.
        client: A shared connection, which the caller closes; it must fit `config`.
        events: Callbacks for a known checkpoint, and for another run or attempt that took over.
        after: Provider of an earlier run with the same partition, codec and `client`, whose cached
            versions this provider takes over.
        room: Memory budget of the rows that were read; ``None`` is unbounded.
        **options: Options of docs/configuration.md besides the URL, in snake case.

    Raises:
        ConfigError: An option is wrong.
        UsageError: A name, a number or the run does not fit.
    """

    supported_custom_metrics: tuple[CustomMetric, ...] = CUSTOM_METRICS

    def __init__(
        self,
        provider_id: StateStoreProviderId,
        *,
        config: Config | str | Mapping[str, object] | None = None,
        url: str | None = None,
        codec: Codec = MSGPACK,
        lists: bool = False,
        families: bool = False,
        expect_existing: bool = False,
        run: RegisteredRun | None = None,
        gen: str | None = None,
        clock: Clock = SYSTEM,
        versions_cached_max: int = VERSIONS_CACHED_MAX,
        client: Client | None = None,
        events: Events | None = None,
        after: StateStoreProvider | None = None,
        room: MemoryBudget | None = None,
        **options: Unpack[Options],
    ) -> None:
        _check(provider_id, run)
        checked = resolve(config, url, options)
        self._client = client or Client(checked, clock=clock)
        self._owns_client = client is None
        self._codec = codec
        self._lists = lists
        self._families = families
        # A processor's families have their own expiries.
        ttl_ms = None if families else checked.state_ttl
        if ttl_ms is not None and lists:
            raise _no_ttl_of_lists(provider_id)
        spec = PartitionSpec(
            provider_id,
            checked,
            family=(
                None if families else family_of(codec.name, lists=lists, ttl=ttl_ms is not None)
            ),
            expect_existing=expect_existing,
            run=run,
            gen=gen,
            room=room,
            ttl_ms=ttl_ms,
        )
        self._partition = PartitionState(
            spec,
            self._client,
            clock=clock,
            versions_cached_max=max(1, versions_cached_max),
            events=events or Events(),
        )
        if after is not None:
            self._partition.take_over(after._partition)
        # Last: a use that no provider has would never end.
        self._disk = process_disk.use(checked, self._client.clock)
        if self._disk is not None:
            files_of(self._client).disk = self._disk.disk

    def __repr__(self) -> str:
        return f"StateStoreProvider({self.id.store_id}, run={self.id.run_id!r})"

    @property
    def id(self) -> StateStoreProviderId:
        """Returns the ids of the partition and the run."""
        return self._partition.id

    def get_store(self, version: int, *, codec: Codec | None = None) -> StateStore:
        """Opens a version to write on top of.

        Args:
            codec: Another codec of the same name, as `Codec.with_values` returns.

        Raises:
            StateError: The version was lost, has expired, or never existed.
            ConflictError: The run already went on from this version.
            UsageError: The version is not a number, the rows have another codec, or the provider is
                one of families.
        """
        self._check_kind(families=False)
        kind = PartitionListStore if self._lists else PartitionStore
        local, held = self._partition.open(_version(version))
        return kind(self._partition, self._fitting(codec), local, held=held)

    def get_list_store(self, version: int, *, codec: Codec | None = None) -> ListStateStore:
        """Opens a version of lists; see `get_store`.

        Raises:
            UsageError: The provider was made without `lists=True`; else see `get_store`.
        """
        store = self.get_store(version, codec=codec)
        if not isinstance(store, ListStateStore):
            raise UsageError(
                "opening a store of lists",
                found="the provider was made without lists=True",
                advice="Make it with lists=True, from the first version of the partition on.",
                where=str(self.id.store_id),
            )
        return store

    def get_family_store(self, version: int) -> FamilyStore:
        """Opens a version of families; see `get_store`.

        Raises:
            UsageError: The provider was made without `families=True`, or the partition has one
                family; else see `get_store`.
        """
        self._check_kind(families=True)
        local, held = self._partition.open(_version(version))
        return FamilyStore(self._partition, local, held=held)

    def get_read_store(self, version: int, *, codec: Codec | None = None) -> ReadStateStore:
        """Opens a version to read, without any effect on writers.

        Args:
            codec: See `get_store`.

        Raises:
            StateError: The version was lost, has expired, or never existed.
            UsageError: See `get_store`.
        """
        self._check_kind(families=False)
        local = self._partition.read(_version(version))
        fitting = self._fitting(codec)
        return PartitionReadStore(
            self._partition, fitting.with_lists() if self._lists else fitting, local
        )

    def latest(self) -> int | None:
        """Returns the newest published version; ``None`` if no version was ever written."""
        return self._partition.latest()

    @property
    def counters(self) -> Counters:
        """Returns the counters, which outlive the provider."""
        return self._partition.counters

    @property
    def custom_metrics(self) -> dict[str, int]:
        """Returns the figures of `supported_custom_metrics` since the provider was made."""
        return self._partition.values()

    def cached_bytes(self) -> int:
        """Returns the approximate size of the cached versions in this process."""
        return self._partition.cache.cached_bytes()

    def is_crowded(self, bytes_max: int) -> bool:
        """Returns whether the newest version is larger, and its changes alone half as large."""
        return self._partition.cache.is_crowded(bytes_max)

    def drop_bases(self) -> None:
        """Evicts the cached base blocks."""
        self._partition.cache.drop_bases()

    def forget_older(self) -> None:
        """Drops all cached versions but the newest."""
        self._partition.cache.forget_older()

    @property
    def server(self) -> MaintainedServer:
        """Returns the server that has the partition, for maintenance that many stores share."""
        return self._partition.server

    def do_maintenance(self, *, make_room: bool = False) -> None:
        """Adds a snapshot if one is due, and drops segments that no retained version needs.

        Args:
            make_room: Drops the cached versions, and makes the next version open with few changes
                over a snapshot.

        Raises:
            RedisStateError: The server refuses, or does not answer.
        """
        self._partition.maintenance.run(make_room=make_room)

    def _check_kind(self, *, families: bool) -> None:
        if families is not self._families:
            made = "with" if self._families else "without"
            raise UsageError(
                f"opening a store of {'families' if families else 'one family'}",
                found=f"the provider was made {made} families=True",
                advice="Use get_family_store with families=True, and get_store without.",
                where=str(self.id.store_id),
            )

    def _fitting(self, codec: Codec | None) -> Codec:
        if codec is not None and codec.name != self._codec.name:
            raise UsageError(
                "opening a version",
                found=f"the codec is {codec.name}, and the provider's codec is {self._codec.name}",
                advice="Give the codec that the rows were written with.",
                where=str(self.id.store_id),
            )
        return codec or self._codec

    def close(self) -> None:
        """Drops the cache, and closes the connections unless the caller passed them.

        The last provider of a process with the option `localDisk` removes the copies.
        """
        self._partition.cache.clear()
        if self._disk is not None:
            self._disk.end()
        if self._owns_client:
            self._client.close()


def _no_ttl_of_lists(provider_id: StateStoreProviderId) -> UsageError:
    return UsageError(
        "opening a store of lists",
        found="the option 'stateTtl' is set, and lists cannot have a time to live",
        advice="Leave the option out for this store, and remove old elements yourself.",
        where=str(provider_id.store_id),
    )


def _version(version: int) -> int:
    if type(version) is not int or not 0 <= version <= NUMBER_MAX:
        raise UsageError(
            "opening a version",
            found="it is not a whole number of 0 or more",
            advice="Give what `commit` returned, or 0 for a new store.",
        )
    return version


def _check(id_: StateStoreProviderId, run: RegisteredRun | None) -> None:
    store = id_.store_id
    check_name(store.checkpoint, what="a checkpoint's name")
    check_name(store.store_name, what="a store's name")
    for number, what in ((store.operator_id, "operator"), (store.partition_id, "partition")):
        if type(number) is not int or not 0 <= number <= _PARTITION_MAX:
            raise UsageError(
                f"naming the {what} of a store",
                found="it is not a whole number of 0 or more",
                advice=f"Give a number up to {_PARTITION_MAX}.",
            )
    if not is_uid(id_.run_id):
        raise UsageError(
            "naming the run of a store",
            found="its id is malformed",
            advice="Give 1 to 64 letters, digits, '_', '.' or '-'.",
        )
    if run is not None and run.run_id != id_.run_id:
        raise UsageError(
            "opening a store for a registered run",
            found="the run and the provider have different ids",
            advice="Give the same id to both.",
        )
