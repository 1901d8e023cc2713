"""One version of a store as a value that another process reads by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis_state.errors import ConfigError
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.versions import VersionRequest

if TYPE_CHECKING:
    from redis_state.reader.view import QueryView

_DIGEST_DIGITS = 16


@dataclass(slots=True)
class Pinned:
    """Partitions of a store, each at one version; it can be pickled, and needs no closing.

    It is read as a `QueryView` is, and as long: while retention keeps the version, and at least ten
    minutes.

    Attributes:
        partitions: Those that are read, which need not be all.
        blocks: Those that keys were looked up in; they may be of other versions, too.
    """

    info: OperatorInfo
    partitions: list[Opened]
    blocks: BlockCache = field(default_factory=BlockCache, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """Tells versions of one number apart: a query that went back writes it again."""
        pins = "\n".join(f"{one.pin.version} {one.pin.uid}" for one in self.partitions)
        return hashlib.sha256(pins.encode()).hexdigest()[:_DIGEST_DIGITS]

    def only(self, partitions: Sequence[Opened]) -> Pinned:
        """The same for some of the partitions."""
        return Pinned(self.info, list(partitions))

    def known(self, operator: int, store: str) -> OperatorInfo:
        """What is known of the store."""
        self._check(operator, store)
        return self.info

    def listed(self, operator: int, store: str) -> OperatorInfo:
        """As `known`: the partitions stay those that were opened."""
        return self.known(operator, store)

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """The partitions; asks nothing of Redis.

        Raises:
            ConfigError: Another version was asked for.
        """
        self._check(operator, store)
        if wanted != VersionRequest():
            raise _has_one()
        if only is None:
            return self.info, list(self.partitions)
        by_number = {one.id.partition: one for one in self.partitions}
        return self.info, [by_number[number] for number in only]

    def moved(self, opened: Opened) -> None:
        """Take note that a version is made up of other segments now."""
        self.partitions = [opened if one.id == opened.id else one for one in self.partitions]

    def view(
        self,
        operator: int | None = None,  # noqa: ARG002  # as a query's
        version: int | None = None,
        **which: object,
    ) -> Pinned:
        """The same: it has one version.

        Raises:
            ConfigError: Another one was asked for.
        """
        if which or version is not None:
            raise _has_one()
        return self

    def _check(self, operator: int, store: str) -> None:
        if (operator, store) != (self.info.operator, self.info.store):
            raise ConfigError(
                f"reading operator {operator}, store '{store}'",
                found=f"only operator {self.info.operator}, store '{self.info.store}' was opened",
            )


def pin(view: QueryView, operator: int, store: str) -> Pinned:
    """A store of a view.

    Raises:
        NotFoundError: The view has no such operator or store.
        StateError: The store has no such version.
    """
    info, partitions = view.open_at(operator, store, VersionRequest())
    return Pinned(info, partitions)


def _has_one() -> ConfigError:
    return ConfigError(
        "reading a pinned version",
        found="another version was asked for than the one that it has",
        advice="Leave version, uids, at and max_age out.",
    )
