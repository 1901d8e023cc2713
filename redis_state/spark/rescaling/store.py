"""Another number of partitions for a store of Python batches, in place; no pyspark.

The rows go into the partitions of a new checkpoint, at the versions that they have, and then the
name goes from the old checkpoint to the new one. Until that last step nothing that a query reads
has changed; what an interrupted call left behind expires within a day.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.backend.server import check_server
from redis_state.codec import Codec
from redis_state.config import Config
from redis_state.errors import ConflictError, FullError, NotFoundError, StateError, UsageError
from redis_state.format.entry import Entry
from redis_state.ids import DEFAULT_STORE, EMPTY_UID, PartitionId, Pin, StoreId, text_number
from redis_state.maintain.activity import refuse_if_used
from redis_state.protocol import PartitionClient, checkpoint_gen, confirm_checkpoint, register_run
from redis_state.protocol.opening import open_commands
from redis_state.protocol.registry import first_batch
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.spark.batches import OPERATOR, PARTITIONS_MAX, PLACE, named, not_opened
from redis_state.spark.rescaling.placing import GroupOf, Placing, cannot
from redis_state.spark.rescaling.rows import Source, Target, renew, restore

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

_KEPT = ("id", "created", "epoch", f"plan:{PLACE}", f"joined:{PLACE}")
"""Fields of the registry that go along as they are."""


@dataclass(frozen=True, slots=True)
class StoreRescale:
    """What a change of the number of partitions did, or would do.

    Attributes:
        gen: Id of the checkpoint that the store had.
        new_gen: Id of the one that it has now; empty where nothing was changed.
        batch: The newest batch, which is the last one of the state that went along.
        before: Number of partitions that it had.
        rows: Rows by new partition.
    """

    name: str
    gen: str
    new_gen: str
    batch: int
    before: int
    rows: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Their number from now on."""
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
    """Give a store of `transform_with_state` or `foreach_batch_with_state_store` more partitions.

    Or fewer. The query has to be stopped, after a batch that ran to its end. At its next start it
    goes on with all of its state; leave ``partitions`` out of its call, or give the new number. The
    state that it had stays in Redis, under the checkpoint id `StoreRescale.gen`, until
    ``redis-state purge --gen`` removes it.

    Every row is looked at: one that does not lie where Spark's hash of its key columns says ends
    the call, and nothing is changed.

    Args:
        name: Of the store.
        group_of: For a store that a function of yours writes, what gives the values of the key
            columns, in their order, by a key of the state. ``None`` takes keys that are these
            values, or tuples that begin with them, if enough of them prove it.
        codec: Of such a store, if it is one of your own.
        dry_run: Read and count, and change nothing.
        force: Do not look whether the query seems to run.
        url: The server; ``None`` means that of the environment.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        NotFoundError: There is no such store.
        UsageError: It seems to be in use, has that many partitions already, is a store alone or
            an ephemeral one, or it cannot be told which row belongs where.
        StateError: A partition does not hold what the newest batch committed.
        ConflictError: The query was started meanwhile.
        FullError: The server does not have the memory for both; this is found before it starts.
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
    """As `rescale_store`, with options that are checked already."""
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        store = _Store.find(client, name, tenant)
        moved = store.moved_to()
        if moved is not None and not dry_run:
            # A call before this one got as far as the step that decides.
            return store.finish(moved)
        store.check(partitions)
        if not dry_run:
            refuse_if_used(client, store.gen, tenant=tenant, attempted=store.what, force=force)
        return store.rescale(partitions, group_of, codec, dry_run=dry_run)


class _Store:
    """A store as its registry describes it."""

    def __init__(
        self, client: Client, name: str, tenant: str, gen: str, registry: dict[str, str]
    ) -> None:
        self.client, self.name, self.tenant, self.gen = client, name, tenant, gen
        self.what = f"changing the number of partitions of store '{name}'"
        self.registry = registry
        self.newest = registry[f"batch:{PLACE}"]
        first, made = first_batch(self.newest.encode())
        newest, _, count, _, self.layout = self.newest.split(" ", 4)
        self.batch, self.before = int(newest), int(count)
        self.version = self.batch - first + made

    @classmethod
    def find(cls, client: Client, name: str, tenant: str) -> _Store:
        """The store that has the name now."""
        what = f"changing the number of partitions of store '{name}'"
        gen = checkpoint_gen(client, name, tenant=tenant)
        found: dict[bytes, bytes] = {}
        if gen is not None:
            (found,) = client.call(what, [("HGETALL", keys.query(gen, tenant=tenant))])
        if gen is None or not found:
            raise NotFoundError(
                what,
                found="Redis knows no store of this name",
                advice="`redis-state queries` lists them. Another server, database or key prefix "
                "has other ones.",
            )
        registry = {key.decode(): value.decode() for key, value in found.items()}
        if f"batch:{PLACE}" not in registry:
            raise cannot(
                "no batch has begun there, or it is a store alone, whose program itself says which "
                "key lies in which partition",
                "Give the new number to the first batch, or let the program read the old "
                "partitions and write new ones. Nothing was changed.",
            )
        return cls(client, name, tenant, gen, registry)

    def moved_to(self) -> str | None:
        """The checkpoint that has the state already; ``None`` if there is none."""
        return self.registry.get(f"moved:{PLACE}")

    def check(self, partitions: int) -> None:
        """Refuse what does not make sense."""
        check_server(self.client)
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(
                self.what,
                found=f"{partitions!r} partitions were asked for",
                advice=f"Give 1 to {PARTITIONS_MAX}.",
            )
        if partitions == self.before:
            raise UsageError(
                self.what,
                found=f"it has {partitions} partitions already",
                advice="Nothing is to be done, and nothing was changed.",
            )
        (left_ms,) = self.client.call(self.what, [("PTTL", self._query(self.gen))])
        if left_ms >= 0:
            raise UsageError(
                self.what,
                found="the store is ephemeral, so it expires by itself",
                advice="Begin a new one with the other number. Nothing was changed.",
            )

    def rescale(
        self, partitions: int, group_of: GroupOf | None, codec: Codec | None, *, dry_run: bool
    ) -> StoreRescale:
        """Read, write, and give the name to what was written."""
        versions = self._versions()
        sources = [Source(self.client, self._ids(self.gen, self.before), v) for v in versions]
        placings = [
            Placing(self.layout, one.families, group_of=group_of, codec=codec) for one in sources
        ]
        counted = sources[0].spread(placings[0], partitions, ())
        sure = placings[0].of_groups or group_of is not None
        if not sure and not counted.proven:
            raise cannot("its rows are too few, or in one partition, to prove what its keys mean")
        told = StoreRescale(self.name, self.gen, "", self.batch, self.before, tuple(counted.rows))
        if dry_run:
            return told
        self._check_memory(sum(one.bytes for one in sources))
        epoch = self._take(versions[0])
        new_gen = uuid.uuid4().hex
        self._describe(new_gen, partitions)
        self._write(new_gen, partitions, versions, group_of, codec)
        self._leave(new_gen, partitions, epoch)
        return self.finish(new_gen)

    def finish(self, new_gen: str) -> StoreRescale:
        """Give the name to the new checkpoint; may be done again."""
        registry = self.client.call(self.what, [("HGETALL", self._query(new_gen))])[0]
        newest = registry.get(f"batch:{PLACE}".encode(), b"").decode().split(" ", 4)
        if len(newest) != 5:
            raise StateError(
                self.what,
                found=f"its state was moved to checkpoint {new_gen}, which is not there",
                advice="Restore the data of that Redis.",
            )
        count = int(newest[2])
        confirm_checkpoint(
            self.client,
            new_gen,
            name=self.name,
            operator=OPERATOR,
            store=DEFAULT_STORE,
            partitions=count,
            families=(),
            tenant=self.tenant,
        )
        args = [keys.name_field(self.name), self.gen, new_gen]
        reply = self.client.script(
            self.what, script("rename"), [keys.names(tenant=self.tenant)], args
        )
        if reply != ["OK"]:
            raise ConflictError(
                self.what,
                found=f"the name has another checkpoint by now, {reply[-1]}",
                advice="Another call was faster. Look with `redis-state queries`.",
            )
        rows = self._live(new_gen, count)
        return StoreRescale(self.name, self.gen, new_gen, int(newest[0]), self.before, rows)

    def _versions(self) -> list[int]:
        """The version of the newest batch, and the one below: Spark may run the batch again."""
        ids = self._ids(self.gen, self.before)
        missing = not_opened(ids, self.client.call(self.what, open_commands(ids, self.version)))
        if missing:
            raise StateError(
                self.what,
                found=f"{named(missing)} does not hold version {self.version}: batch {self.batch} "
                "never ran to its end there, or its state was lost",
                advice=f"Let the query run batch {self.batch} to its end, and do it again. "
                "Nothing was changed.",
                version=self.version,
            )
        below = self.version - 1
        if below < 1 or not_opened(ids, self.client.call(self.what, open_commands(ids, below))):
            return [self.version]
        return [self.version, below]

    def _check_memory(self, wanted: int) -> None:
        """Refuse before anything is written if the server could not hold it."""

        def rooms(client: Client) -> list[int]:
            (info,) = client.call(self.what, [("INFO", "memory")])
            limit = int(info.get("maxmemory", 0))
            return [limit - int(info["used_memory"])] if limit else []

        left = list(self.client.over_parts(self.what, rooms))
        if left and sum(left) < wanted:
            raise FullError(
                self.what,
                found=f"the state takes about {wanted:,} bytes once more, and {sum(left):,} are "
                "left below maxmemory",
                advice="Give the server more memory, or remove state that nobody needs. Nothing "
                "was changed.",
            )

    def _take(self, version: int) -> int:
        """Take the partitions: whoever still runs is fenced from here on."""
        run = register_run(
            self.client, self.gen, uuid.uuid4().hex, by_driver=True, tenant=self.tenant
        )
        for id_ in self._ids(self.gen, self.before):
            partition = PartitionClient(self.client, id_, versions_to_retain=1)
            run = partition.acquire(run, partition.open("", version).pin)
        return run.epoch

    def _describe(self, gen: str, partitions: int) -> None:
        newest, first, _, run, layout = self.newest.split(" ", 4)
        fields = {name: self.registry[name] for name in _KEPT if name in self.registry}
        fields |= {"f": "1", f"batch:{PLACE}": f"{newest} {first} {partitions} {run} {layout}"}
        begun = self.registry.get(f"begun:{PLACE}")
        if begun is not None:
            # No run holds the new partitions, so none is too old for them.
            fields[f"begun:{PLACE}"] = " ".join([*begun.split(" ")[:4], "0", "0"])
        flat = [word for pair in fields.items() for word in pair]
        query = self._query(gen)
        expires = ("PEXPIRE", query, str(STAGED_TTL_MS))
        self.client.call(self.what, [("HSET", query, *flat), expires])

    def _write(
        self,
        gen: str,
        partitions: int,
        versions: Sequence[int],
        group_of: GroupOf | None,
        codec: Codec | None,
    ) -> None:
        ids = self._ids(gen, partitions)
        refs = [EMPTY_UID] * partitions
        written: list[list[tuple[Target, Entry]]] = []
        for version in reversed(versions):
            source = Source(self.client, self._ids(self.gen, self.before), version)
            placing = Placing(self.layout, source.families, group_of=group_of, codec=codec)
            targets = [
                Target(self.client, id_, version, uuid.uuid4().hex, ref, source.families)
                for id_, ref in zip(ids, refs, strict=True)
            ]
            source.spread(placing, partitions, targets)
            written.insert(0, [(one, one.finish()) for one in targets])
            refs = [one.uid for one in targets]
        floor = 0 if versions[-1] == 1 else versions[-1]
        retained = self._retained()
        for of_one in zip(*written, strict=True):
            restore(self.client, of_one, floor=floor, retained=retained)

    def _leave(self, new_gen: str, partitions: int, epoch: int) -> None:
        """The step that decides: no batch begins in the old checkpoint any more."""
        self._keep(new_gen, partitions, 0)
        args = [PLACE, str(epoch), self.newest, new_gen]
        reply = self.client.script(self.what, script("leave"), [self._query(self.gen)], args)
        if reply != ["OK", new_gen]:
            self._keep(new_gen, partitions, STAGED_TTL_MS)
            raise ConflictError(
                self.what,
                found="the query was started meanwhile, or another call was faster",
                advice="It goes on with the partitions that it has. Stop it, and do this again.",
            )

    def _keep(self, gen: str, partitions: int, keep_ms: int) -> None:
        """Let what was written expire after so long; 0 keeps it for ever."""
        for id_ in self._ids(gen, partitions):
            renew(self.client, id_, keep_ms)
        query = self._query(gen)
        stays = ("PEXPIRE", query, str(keep_ms)) if keep_ms else ("PERSIST", query)
        self.client.call(self.what, [stays])

    def _retained(self) -> int:
        (id_, *_) = self._ids(self.gen, self.before)
        (found,) = self.client.call(self.what, [("HGET", keys.meta(id_), "n")])
        return text_number((found or b"").decode()) or 1

    def _live(self, gen: str, count: int) -> tuple[int, ...]:
        found = []
        for id_ in self._ids(gen, count):
            opened = PartitionClient(self.client, id_, versions_to_retain=1).open("", None)
            found.append(opened.segments[0].entry.live if opened.pin != Pin(0, EMPTY_UID) else 0)
        return tuple(found)

    def _query(self, gen: str) -> str:
        return keys.query(gen, tenant=self.tenant)

    def _ids(self, gen: str, count: int) -> list[PartitionId]:
        store = StoreId(gen, OPERATOR, DEFAULT_STORE, self.tenant)
        return [PartitionId(store, number) for number in range(count)]
