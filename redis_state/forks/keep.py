"""`keep`, `kept_versions` and `drop_kept`: versions that stay readable under a name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import Command
from redis_state.config import Config
from redis_state.errors import (
    FormatError,
    Kind,
    RedisStateError,
    StateError,
    UnavailableError,
    UsageError,
)
from redis_state.ids import PartitionId
from redis_state.protocol.kept import (
    KEEP_FIELD,
    KeptVersion,
    check_keep_name,
    forget_kept,
    no_such_version,
    parse_kept,
    read_kept,
)
from redis_state.protocol.opening import Opened, open_named
from redis_state.protocol.pins import (
    KEEP,
    KEEP_OWNER,
    held_commands,
    keep_owner,
    kept_name,
    owners_in,
    pin_all,
    read_held,
    unpin_all,
)
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.query import Query, find_query
from redis_state.reader.version_request import NEWEST
from redis_state.status.figures import moment

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

_TRIES_MAX = 5
_AT_ONCE = 512
_LONGER_MS = 60_000
"""Time by which pins outlive their name: a reader that finds the name finds all pins."""

_WHAT = "keeping a version"


def keep(
    url: str | None,
    query: str,
    *,
    name: str,
    at_batch: int | None = None,
    keep_ms: int = 0,
    **options: Unpack[Options],
) -> KeptVersion:
    """Keeps a version of a query readable under a name; no state is copied.

    The version can then be read as ``at=name``, however many batches follow. Its segments stay in
    Redis until the name is dropped or expires.

    Args:
        url: The server; ``None`` uses the server of the environment.
        query: Name or id of the query, or id of its checkpoint; or name of a Python store.
        name: 1 to 50 letters, digits, ``_``, ``.`` or ``-``.
        at_batch: Keeps the state after this batch; ``None`` keeps the newest confirmed version.
            Of a store alone, batch b is version b + 1 of each partition.
        keep_ms: Milliseconds after which the name is dropped; 0 means never.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        ConfigError: The name is malformed or reserved.
        NotFoundError: There is no such query.
        UsageError: The query has a kept version of this name, no confirmed version, or is
            ephemeral.
        StateError: Redis no longer holds the batch, or the number of partitions was changed.
        FormatError: The checkpoint was purged, or is damaged.
        LimitError: 64 forks and kept versions hold a segment already.
        UnavailableError: Redis gave no answer before the deadline. `kept_versions` shows whether
            the version is kept.
    """
    return keep_with(
        options_table.resolve(None, url, options),
        query,
        name=name,
        at_batch=at_batch,
        keep_ms=keep_ms,
    )


def keep_with(
    config: Config, query: str, *, name: str, at_batch: int | None = None, keep_ms: int = 0
) -> KeptVersion:
    """Runs `keep` with options that are already checked."""
    check_keep_name(name)
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        found = find_query(client, query, tenant=tenant)
        return _Keeping(client, found, name, tenant).run(at_batch, keep_ms)


def kept_versions(url: str | None, query: str, **options: Unpack[Options]) -> list[KeptVersion]:
    """Lists the kept versions of a query, oldest first, without those whose time is over.

    Args:
        url: See `keep`, also for the other arguments.

    Raises:
        NotFoundError: There is no such query.
        FormatError: An entry is damaged.
        UnavailableError: Redis gave no answer before the deadline.
    """
    return kept_with(options_table.resolve(None, url, options), query)


def kept_with(config: Config, query: str) -> list[KeptVersion]:
    """Runs `kept_versions` with options that are already checked."""
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        gen = find_query(client, query, tenant=tenant).info.gen
        now_ms, found = read_kept(client, gen, tenant=tenant)
        # A reader may not remove expired names; maintenance does.
        return [one for one in found if not one.is_expired(now_ms)]


def drop_kept(url: str | None, query: str, name: str, **options: Unpack[Options]) -> KeptVersion:
    """Drops the name of a version; the next maintenance removes its segments.

    Returns:
        The version that was kept.

    Raises:
        NotFoundError: There is no such query or name.
        UnavailableError: Redis gave no answer before the deadline.
    """
    return drop_with(options_table.resolve(None, url, options), query, name)


def drop_with(config: Config, query: str, name: str) -> KeptVersion:
    """Runs `drop_kept` with options that are already checked."""
    check_keep_name(name)
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        found = find_query(client, query, tenant=tenant)
        gen = found.info.gen
        try:
            _, every = read_kept(client, gen, tenant=tenant)
        except FormatError:
            return _drop_damaged(client, gen, name, tenant=tenant)
        there = next((one for one in every if one.name == name), None)
        # The name is removed first: a reader that finds it finds all pins.
        if there is not None:
            forget_kept(client, gen, there, tenant=tenant)
        ids = _written(client, found)
        # Calls that were killed may have left pins without a name.
        owners = _owners_of(client, ids, name)
        if there is None and not owners:
            raise no_such_version(name, every)
        for owner in sorted(owners):
            unpin_all(client, ids, owner)
        return there or KeptVersion(name, 0, 0, 0, 0, {}, KEEP_OWNER)


def _owners_of(client: Client, ids: Sequence[PartitionId], name: str) -> set[str]:
    """Returns the owners of pins that calls with a name have made."""
    found = set()
    for start in range(0, len(ids), _AT_ONCE):
        some: list[Command] = [("HGETALL", keys.meta(id_)) for id_ in ids[start : start + _AT_ONCE]]
        for manifest in client.call(_WHAT, some):
            found |= {one.owner for one in owners_in(manifest) if one.kind == KEEP}
    return {one for one in found if kept_name(one) == name}


def _drop_damaged(client: Client, gen: str, name: str, *, tenant: str) -> KeptVersion:
    """Removes a name whose entry is damaged; maintenance ends its pins.

    Raises:
        FormatError: The entry of another name is damaged.
    """
    query, field = keys.query(gen, tenant=tenant), KEEP_FIELD + name
    (raw,) = client.call(_WHAT, [("HGET", query, field)])
    try:
        parse_kept({} if raw is None else {field.encode(): raw})
    except FormatError:
        client.call(_WHAT, [("HDEL", query, field)])
        return KeptVersion(name, 0, 0, 0, 0, {}, KEEP_OWNER)
    raise


def _written(client: Client, query: Query) -> list[PartitionId]:
    """Returns the partitions that have a manifest."""
    ids = [id_ for one in query.operators() for id_ in query.ids(one, range(one.partitions))]
    there = client.call_in_pieces(
        _WHAT, [("HLEN", keys.meta(id_)) for id_ in ids], at_once=_AT_ONCE
    )
    return [id_ for id_, fields in zip(ids, there, strict=True) if fields]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The versions to keep, by partition."""

    stores: dict[tuple[int, str], list[Opened]]
    batch: int

    @property
    def opened(self) -> list[Opened]:
        return [one for of_store in self.stores.values() for one in of_store]


class _Keeping:
    """One call that gives a version a name."""

    def __init__(self, client: Client, query: Query, name: str, tenant: str) -> None:
        self._client = client
        self._query = query
        self._name = name
        self._tenant = tenant
        self._owner = ""
        self._key = keys.query(query.info.gen, tenant=tenant)
        self._where = f"query '{query.info.title}'"

    def run(self, batch: int | None, keep_ms: int) -> KeptVersion:
        self._check_name()
        for tries in range(_TRIES_MAX):
            # No other call, and no late pin of an earlier try, has the same owner.
            self._owner = keep_owner(self._name)
            chosen = self._chosen(batch)
            (time,) = self._client.call(_WHAT, [("TIME",)])
            try:
                self._pin(chosen, keep_ms)
                break
            except StateError as error:
                # Retention was faster. Only without a named batch is there another one to keep.
                if batch is not None or tries + 1 == _TRIES_MAX:
                    raise self._gone(batch, error) from error
        return self._named(chosen, time_ms(time), keep_ms)

    def _check_name(self) -> None:
        """Rejects a name that exists; removes it if it has expired."""
        time, raw = self._client.call(_WHAT, [("TIME",), ("HGETALL", self._key)])
        now_ms = time_ms(time)
        for one in parse_kept(raw):
            if one.name == self._name and not one.is_expired(now_ms):
                raise self._exists(one)
            if one.name == self._name:
                forget_kept(self._client, self._query.info.gen, one, tenant=self._tenant)

    def _exists(self, one: KeptVersion) -> UsageError:
        return UsageError(
            _WHAT,
            found=f"it has the kept version '{one.name}' of batch {one.batch} already, since "
            f"{moment(one.at_ms)}",
            advice="Choose another name, or drop that version: `redis-state keep "
            f"{shlex.quote(self._query.info.title)} --drop {one.name}`. Nothing was changed.",
            where=self._where,
        )

    def _chosen(self, batch: int | None) -> _Chosen:
        stores = self._query.operators()
        moved = next((one for one in stores if one.moved), None)
        if moved is not None:
            raise StateError(
                _WHAT,
                kind=Kind.STATE_LOST,
                found=f"the number of partitions of store '{moved.store}' was changed, so its "
                "state is in another checkpoint now",
                advice="Name that checkpoint by its id; `redis-state queries` lists it.",
                where=self._where,
            )
        found = self._newest() if batch is None else self._at(batch, stores)
        there = {
            place: [one for one in opened if one.pin.version or one.opened]
            for place, opened in found.items()
        }
        there = {place: opened for place, opened in there.items() if opened}
        if not any(one.pin.version for opened in there.values() for one in opened):
            raise UsageError(
                _WHAT,
                found="no batch of it is confirmed yet, so there is no state to keep",
                advice="Keep it after its second batch.",
                where=self._where,
            )
        if batch is None:
            ahead = {(one.operator, one.store): one.ahead for one in stores}
            batch = max(
                max(one.pin.version for one in opened) - ahead[place]
                for place, opened in there.items()
            )
        return _Chosen(there, batch)

    def _newest(self) -> dict[tuple[int, str], list[Opened]]:
        view = self._query.view()
        return {
            (one.operator, one.store): view.open_at(one.operator, one.store, NEWEST)[1]
            for one in view.operators()
        }

    def _at(
        self, batch: int, stores: Sequence[OperatorInfo]
    ) -> dict[tuple[int, str], list[Opened]]:
        newest = self._newest()
        found = {}
        try:
            for one in stores:
                place, version = (one.operator, one.store), batch + one.ahead
                opened = newest.get(place, [])
                if version < 1 or not opened:
                    continue
                top = max(each.pin.version for each in opened)
                if not one.alone and version > top:
                    raise StateError(
                        _WHAT,
                        kind=Kind.STATE_LOST,
                        found=f"batch {batch} is not confirmed yet",
                        advice="Keep it once the next batch has begun.",
                    )
                ids = [each.id for each in opened if each.pin.version]
                # Attempts at the newest version can differ; the view knows the right ones.
                found[place] = (
                    opened
                    if version == top and not one.alone
                    else open_named(self._client, ids, version, uids={})
                )
        except StateError as error:
            raise self._gone(batch, error) from error
        return found

    def _gone(self, batch: int | None, error: StateError) -> StateError:
        """Returns the error for a missing version, with the batches that Redis holds."""
        ids = _written(self._client, self._query)
        marks = self._client.call(_WHAT, [("HMGET", keys.meta(id_), "w", "o") for id_ in ids])
        ahead = {(one.operator, one.store): one.ahead for one in self._query.operators()}
        spans = [
            (max(int(low or 0), 1) - of, int(high or 0) - of)
            for id_, (low, high) in zip(ids, marks, strict=True)
            for of in [ahead[id_.store.operator, id_.store.store]]
        ]
        low, high = max(one for one, _ in spans), min(one for _, one in spans)
        there = f"batches {low} to {high} can be kept" if low <= high else "no batch can be kept"
        return StateError(
            _WHAT,
            kind=error.kind,
            found=f"Redis does not hold the state after batch {batch}"
            if batch is not None
            else f"retention dropped the version each time ({error.found})",
            advice=f"Nothing was changed. Now {there}.",
            where=self._where,
            version=error.version,
        )

    def _pin(self, chosen: _Chosen, keep_ms: int) -> None:
        """Pins the versions of all partitions, or of none."""
        by_version: dict[int, list[Opened]] = {}
        for one in chosen.opened:
            by_version.setdefault(one.pin.version, []).append(one)
        try:
            for version, group in by_version.items():
                for start in range(0, len(group), _AT_ONCE):
                    some = group[start : start + _AT_ONCE]
                    pin_all(
                        self._client,
                        [one.id for one in some],
                        self._owner,
                        version,
                        kind=KEEP,
                        uids={one.id: one.pin.uid for one in some if version},
                        ttl_ms=keep_ms and keep_ms + _LONGER_MS,
                        lasting=True,
                    )
        except RedisStateError:
            self._unpin(chosen)
            raise

    def _unpin(self, chosen: _Chosen) -> None:
        """Ends the pins of this call, as far as the server answers; maintenance ends the others."""
        with suppress(RedisStateError):
            unpin_all(self._client, [one.id for one in chosen.opened], self._owner)

    def _named(self, chosen: _Chosen, at_ms: int, keep_ms: int) -> KeptVersion:
        """Enters the name once all pins are there, and checks them once more."""
        made = KeptVersion(
            self._name,
            chosen.batch,
            max(one.pin.version for one in chosen.opened),
            at_ms,
            at_ms + keep_ms if keep_ms else 0,
            {
                f"{operator}:{store}": frozenset(one.id.partition for one in opened)
                for (operator, store), opened in chosen.stores.items()
            },
            self._owner,
        )
        enter: list[Command] = [("HSETNX", self._key, made.field, made.json)]
        # Where this fails, the pins stay: the name may arrive late.
        _, entered = self._client.call(_WHAT, [*enter, ("HGET", self._key, made.field)])
        if entered != made.json.encode():
            # Another call was faster.
            self._unpin(chosen)
            self._check_name()
            raise self._disturbed()
        ids = [one.id for one in chosen.opened]
        try:
            replies = self._client.call(_WHAT, held_commands(ids, self._owner))
            held = [read_held(id_, reply) for id_, reply in zip(ids, replies, strict=True)]
            if [one and one.pin for one in held] != [one.pin for one in chosen.opened]:
                raise self._disturbed()
        except RedisStateError:
            # While the name may be there, so are its pins.
            with suppress(RedisStateError):
                if forget_kept(self._client, self._query.info.gen, made, tenant=self._tenant):
                    self._unpin(chosen)
            raise
        return made

    def _disturbed(self) -> UnavailableError:
        return UnavailableError(
            _WHAT,
            found="another call with the same name, or a fail-over, removed a pin",
            advice="Nothing is kept. Try again.",
            where=self._where,
        )
