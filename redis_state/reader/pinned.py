"""One version of a store as a value that can be sent to another process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis_state.errors import ConfigError
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.version_request import VersionRequest

if TYPE_CHECKING:
    from redis_state.reader.view import QueryView

_DIGEST_DIGITS = 16


@dataclass(slots=True)
class Pinned:
    """Partitions of a store, each at one version; picklable, without resources to close.

    Readable for as long as a `QueryView`: while retention keeps the version, and for at least ten
    minutes.

    Attributes:
        partitions: The opened partitions, not necessarily all.
        blocks: Cached blocks of look-ups, also of other versions.
    """

    info: OperatorInfo
    partitions: list[Opened]
    blocks: BlockCache = field(default_factory=BlockCache, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """Hash that tells apart versions of one number: a rewound query writes a number again."""
        pins = "\n".join(f"{one.pin.version} {one.pin.uid}" for one in self.partitions)
        return hashlib.sha256(pins.encode()).hexdigest()[:_DIGEST_DIGITS]

    def only(self, partitions: Sequence[Opened]) -> Pinned:
        """Returns the same version of some of the partitions."""
        return Pinned(self.info, list(partitions))

    def known(self, operator: int, store: str) -> OperatorInfo:
        """Returns the metadata of the store."""
        self._check(operator, store)
        return self.info

    def listed(self, operator: int, store: str) -> OperatorInfo:
        """Returns the metadata of the store as it was when the version was opened."""
        return self.known(operator, store)

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Returns the partitions, without a request to Redis.

        Raises:
            ConfigError: The request names another version.
        """
        self._check(operator, store)
        if wanted != VersionRequest():
            raise _has_one()
        if only is None:
            return self.info, list(self.partitions)
        by_number = {one.id.partition: one for one in self.partitions}
        return self.info, [by_number[number] for number in only]

    def moved(self, opened: Opened) -> None:
        """Records that the segments of a version have changed."""
        self.partitions = [opened if one.id == opened.id else one for one in self.partitions]

    def view(
        self,
        operator: int | None = None,  # noqa: ARG002  # as a query's
        version: int | None = None,
        **which: object,
    ) -> Pinned:
        """Returns this object, which has one version.

        Raises:
            ConfigError: The request names another version.
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
    """Pins the version of a store that a view reads.

    Raises:
        NotFoundError: The view has no such operator or store.
        StateError: The store has no such version.
    """
    info, partitions = view.open_at(operator, store, VersionRequest())
    return Pinned(info, partitions)


def _has_one() -> ConfigError:
    return ConfigError(
        "reading a pinned version",
        found="another version was requested than the one opened",
        advice="Omit version, uids, at and max_age.",
    )
