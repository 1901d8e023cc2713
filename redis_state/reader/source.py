"""Protocols of the sources of state: a query, or a view of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.version_request import VersionRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.reader.version_request import Which


class Source(Protocol):
    """Opens stores for reading; a query or a view of a query.

    Attributes:
        blocks: Cached blocks of look-ups.
    """

    blocks: BlockCache

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns cached metadata of a store; may look for a newer version first."""

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns current metadata of a store; see `Query.listed`."""

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Opens partitions of a store at one version; see `Query.open_at`."""

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> Source:
        """Returns a source that is fixed to one version."""

    def moved(self, opened: Opened) -> None:
        """Records that the segments of a version have changed."""


class Stores(Source, Protocol):
    """A source that also names the partitions of its stores, to read many versions."""

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> Stores:
        """Returns a source that is fixed to one version."""

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """Returns a store and its partitions; see `Query.partitions`."""

    def store_id(self, operator: int, store: str) -> StoreId:
        """Returns the id of a store; see `Query.store_id`."""
