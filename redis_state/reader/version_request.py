"""Requests for a version: the arguments that choose what a read sees (docs/reading.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_state.errors import ConfigError
from redis_state.ids import is_uid
from redis_state.protocol.kept import is_keep_name
from redis_state.protocol.registry import OperatorInfo

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Which(TypedDict, total=False):
        """Arguments that choose a version, besides `version`; docs/reading.md defines them.

        Attributes:
            at: ``"confirmed"``, ``"latest"``, ``"uncommitted"``, the number of a batch, or the name
                of a kept version.
            uids: Spark's unique ids of `version`, one for each partition in their order.
            max_age: Seconds.
        """

        at: str | int
        uids: Sequence[str] | None
        max_age: float | None


CONFIRMED = "confirmed"
LATEST = "latest"
UNCOMMITTED = "uncommitted"
_WORDS = (CONFIRMED, LATEST, UNCOMMITTED)

MAX_AGE_MIN_S = 120

_CHOOSING = "choosing the version to read"


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """The version that a call asks for.

    Attributes:
        version: ``None`` means that `at` decides.
        at: See `Which`.
        uids: See `Which`.
        max_age: See `Which`.

    Raises:
        ConfigError: The arguments contradict each other, or one is malformed.
    """

    version: int | None = None
    at: str | int = CONFIRMED
    uids: Sequence[str] | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        if self.version is not None and not _is_number(self.version):
            raise _unclear(
                "'version' is not the number of a version",
                "Give 0 or more: it is the number of the batch plus one.",
            )
        of_batch = _is_number(self.at)
        if not of_batch and self.at not in _WORDS and self.kept is None:
            raise _unclear(
                "'at' is neither a version's name nor the number of a batch",
                "Give at='confirmed', at='latest', at='uncommitted', a batch id such as at=41, or "
                "the name of a kept version.",
            )
        if self.version is not None and self.at != CONFIRMED:
            raise _unclear("both 'at' and 'version' were given", "Give one of them.")
        if self.uids is not None and (self.version is None or not all(map(is_uid, self.uids))):
            raise ConfigError(
                "opening the state by unique ids",
                found="no version has these ids" if self.version is None else "an id is malformed",
                advice="Give the version, and its ids as the commit log of the checkpoint lists "
                "them.",
            )
        if self.max_age is None:
            return
        if self.version is not None or of_batch or self.kept is not None:
            raise _unclear(
                "'max_age' was given for a version that does not change", "Omit one of them."
            )
        if not self.max_age >= MAX_AGE_MIN_S:
            raise _unclear(
                f"'max_age' is below {MAX_AGE_MIN_S} seconds, and a query gives a sign of life "
                "once a minute",
                f"Give {MAX_AGE_MIN_S} or more.",
            )

    @property
    def newest(self) -> bool:
        """True if the newest confirmed version is requested."""
        return self.version is None and self.at == CONFIRMED

    @property
    def unconfirmed(self) -> bool:
        """True if versions that the query has not confirmed are requested, too."""
        return self.at in (LATEST, UNCOMMITTED)

    @property
    def kept(self) -> str | None:
        """The name of the requested kept version; ``None`` if another version is requested."""
        if not isinstance(self.at, str) or self.at in _WORDS:
            return None
        return self.at if is_keep_name(self.at) else None

    def named(self, info: OperatorInfo) -> int | None:
        """Returns the number of the version; ``None`` if it has to be looked for.

        Raises:
            ConfigError: The store has no version for this batch.
        """
        if not isinstance(self.at, int):
            return self.version
        if info.alone:
            raise _unclear("the versions of this store are not batches", "Give 'version'.")
        return version_after(self.at, info.ahead, what=_CHOOSING)

    def by_partition(self, info: OperatorInfo) -> Mapping[int, str]:
        """Returns the unique ids by partition.

        Raises:
            ConfigError: The number of ids is not the number of partitions.
        """
        if self.uids is None:
            return {}
        if len(self.uids) != info.partitions:
            raise ConfigError(
                "opening the state by unique ids",
                found=f"{len(self.uids)} ids were given for {info.partitions} partitions",
                advice="Give one for each partition, in their order.",
            )
        return dict(enumerate(self.uids))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


NEWEST = VersionRequest()
"""The confirmed version, which most calls ask for."""


def which_of(given: Mapping[str, Any], version: int | None) -> VersionRequest:
    """Returns the version that the arguments of a call ask for.

    Raises:
        TypeError: There is no such argument.
        ConfigError: See `VersionRequest`.
    """
    return NEWEST if version is None and not given else VersionRequest(version, **given)


def refuse_uncommitted(at: str | int, what: str) -> None:
    """Refuses rows that may be taken back, for what lasts.

    Raises:
        ConfigError: Uncommitted rows are requested.
    """
    if at == UNCOMMITTED:
        raise ConfigError(
            what,
            found="at='uncommitted' has rows of the running batch, which may be taken back",
            advice="Give at='confirmed' or at='latest'.",
        )


def version_after(batch: int, ahead: int, *, what: str) -> int:
    """Returns the state version that a batch made.

    Args:
        ahead: See `OperatorInfo.ahead`.

    Raises:
        ConfigError: The store began later.
    """
    version = batch + ahead
    if version < 1:
        raise ConfigError(
            what,
            found=f"the store began with batch {1 - ahead}",
            advice="Give that batch or a later one.",
        )
    return version


def _unclear(found: str, advice: str) -> ConfigError:
    return ConfigError(_CHOOSING, found=found, advice=advice)
