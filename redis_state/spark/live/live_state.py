"""State of another query for Spark tasks: chosen once, read at one version; no pyspark."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.config import PASSWORD_VARIABLE, Config
from redis_state.errors import FormatError, StateError
from redis_state.ids import StoreId, is_gen, text_number
from redis_state.live import Reader
from redis_state.protocol.registry import QueryInfo
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.family import FamilyChoice, FamilySource
from redis_state.reader.family_scan import StoredRows
from redis_state.reader.feed.change_spans import ChangeSpans
from redis_state.reader.feed.family_location import FamilyLocation, place_of
from redis_state.reader.feed.feed_positions import Advice
from redis_state.reader.pinned import Pinned, pin
from redis_state.reader.query import Query
from redis_state.reader.state_table import StateTable
from redis_state.reader.table_columns import RowCodec
from redis_state.reader.version_request import VersionRequest
from redis_state.types.decoding import AS_WRITTEN, Decoding

_WORDS = 3
"""Number of words in the text of a version."""


@dataclass(frozen=True, slots=True)
class LiveState:
    """Selected state of a query, and its server.

    Attributes:
        at: Version to read; see docs/reading.md.
        decoding: Forms of values.
    """

    config: Config
    query: str
    operator: int
    store: str
    family: str
    at: str | int
    decoding: Decoding = AS_WRITTEN

    def pinned(self) -> Pinned:
        """Pins all partitions at the version that `at` names now.

        Raises:
            RedisStateError: See `OperatorState.get`.
        """
        with Reader(self.config) as reader:
            view = reader.query(self.query).view(self.operator, at=self.at)
            return pin(view, self.operator, self.store)

    def table(self, client: Client, pinned: Pinned) -> StateTable:
        """Returns the table of a pinned version."""
        return StateTable(client, pinned, self.operator, self.store, self.family, self.decoding)

    def changes(self, client_of: Callable[[Config], Client], advice: Advice) -> ChangeSpans:
        """Returns the change feed of the query's present checkpoint.

        Args:
            client_of: Returns the connections to a server.
            advice: See `ChangeSpans`.

        Raises:
            NotFoundError: The query does not exist.
            RedisStateError: See `Reader.query`.
        """
        with Reader(self.config) as reader:
            gen = reader.query(self.query).info.gen
        tenant = keys.tenant_of(self.config.key_prefix)
        store = StoreId(gen, self.operator, self.store, tenant)
        return ChangeSpans(lambda: self.place(client_of(self.config), gen), store, advice)

    def place(self, client: Client, gen: str) -> FamilyLocation:
        """Returns the location of the family in a checkpoint.

        Raises:
            NotFoundError: The operator or store no longer exists.
        """
        choice = FamilyChoice(client, self.operator, self.family, None, self.decoding)
        return place_of(client, self._query(client, gen), self.operator, self.store, choice)

    def codec(self, client: Client, pinned: Pinned) -> RowCodec:
        """Returns the codec of a pinned version's rows.

        Raises:
            RedisStateError: See `OperatorState.get`.
        """
        choice = FamilyChoice(client, self.operator, self.family, None, self.decoding)
        of = FamilySource(client, pinned, self.operator, self.store, choice)
        return StoredRows(of).opened(VersionRequest())[0]

    def _query(self, client: Client, gen: str) -> Query:
        tenant = keys.tenant_of(self.config.key_prefix)
        return Query(client, QueryInfo(gen, "", self.query, 0, 0), tenant=tenant)

    def reopened(self, client: Client, text: str, blocks: BlockCache | None = None) -> Pinned:
        """Opens the version of a text that `pin_text` made.

        Args:
            blocks: Cached blocks of other versions of this state.

        Raises:
            StateError: Retention has dropped the version, or the query went back and has written
                the version again.
            FormatError: The text is malformed.
        """
        words = text.split(" ")
        numbers = [text_number(number) for number in words[1].split(",")] if words[1:] else []
        if len(words) != _WORDS or not is_gen(words[0]) or None in numbers:
            raise FormatError(
                f"reading a version of query '{self.query}' again",
                found="the stored note of the version was not written by redis-state",
                advice="Run the batch again: it reads the version that is confirmed then.",
            )
        gen, versions, digest = words
        query = self._query(client, gen)
        query.operators()
        if VersionRequest(at=self.at).kept is not None:
            info, opened = query.open(self.operator, self.store, None, at=self.at)
        elif len(numbers) == 1:
            info, opened = query.open(self.operator, self.store, numbers[0])
        else:
            opened = []
            for partition, number in enumerate(numbers):
                info, (one,) = query.open(self.operator, self.store, number, only=[partition])
                opened.append(one)
        found = Pinned(info, opened, BlockCache() if blocks is None else blocks)
        if found.digest != digest:
            raise StateError(
                f"reading version {versions} of query '{self.query}' again",
                found="the query went back, and rewrote this version",
                advice="Run the batch again: it reads the version that is confirmed then.",
            )
        return found

    def with_password(self) -> LiveState:
        """Adds the password of this process's environment, which no plan contains."""
        password = os.environ.get(PASSWORD_VARIABLE)
        if self.config.password_file is not None or self.config.password or not password:
            return self
        return replace(self, config=replace(self.config, password=password))


def pin_text(pinned: Pinned) -> str:
    """Encodes a version as a short text: checkpoint, version numbers, digest of the attempts."""
    versions: Sequence[int] = [one.pin.version for one in pinned.partitions]
    if len(set(versions)) == 1:
        versions = versions[:1]
    gen = pinned.partitions[0].id.store.gen
    return f"{gen} {','.join(map(str, versions))} {pinned.digest}"
