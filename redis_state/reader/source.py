"""What state is read from: a query, or a view of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.versions import VersionRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.reader.versions import Which


class Source(Protocol):
    """What an operator's state is opened by: a query, or a view of it.

    Attributes:
        blocks: Those that keys were looked up in.
    """

    blocks: BlockCache

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """What is known of a store; a look for a newer version may come first."""

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """As `Query.listed`."""

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """As `Query.open_at`."""

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> Source:
        """The same at one version."""

    def moved(self, opened: Opened) -> None:
        """Called when a version was found to be made up of other segments than before."""


class Stores(Source, Protocol):
    """A source that also says where its stores lie, for who looks at many versions."""

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> Stores:
        """The same at one version."""

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """As `Query.partitions`."""

    def store_id(self, operator: int, store: str) -> StoreId:
        """As `Query.store_id`."""
