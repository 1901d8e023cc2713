"""A view that follows the confirmed version, polled a few times a second, for very many calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from redis_state.backend.client import Client
from redis_state.clock import Clock
from redis_state.errors import ConfigError, RedisStateError
from redis_state.ids import PartitionId, StoreId
from redis_state.process import tell_after_fork
from redis_state.protocol.opening import Opened
from redis_state.protocol.registry import OperatorInfo, QueryInfo
from redis_state.reader.operators import Operators
from redis_state.reader.version_request import NEWEST, VersionRequest
from redis_state.reader.view import QueryView, ViewedQuery

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redis_state.reader.version_request import Which

INTERVAL_S = 0.1
"""Default seconds between two polls."""


class LiveView(Operators):
    """A query at its confirmed version, at most an interval old; made by `Query.live_view`.

    With ``at="uncommitted"`` it is the newest published version with rows of the running batch;
    `QueryView.uncommitted` of `current` tells how many partitions have such rows.

    Between two polls for a newer version, reads of cached blocks send nothing to Redis, and all
    reads are of one version. A poll reads the list of stores and three fields of each partition,
    and new data if there is any. If a poll fails, the read that needed it fails, too: no answer is
    older than the interval. A live view holds no connection, needs no closing, and is safe to share
    between threads. One thread polls, and the threads that need the answer wait.

    Attributes:
        info: Entry of the query in the list of checkpoints.
        blocks: Cached blocks of the query.
    """

    def __init__(
        self,
        client: Client,
        query: ViewedQuery,
        look: Callable[[QueryView | None], QueryView],
        interval_s: float,
        *,
        wanted: VersionRequest = NEWEST,
    ) -> None:
        is_number = isinstance(interval_s, (int, float)) and not isinstance(interval_s, bool)
        if not (is_number and interval_s > 0 and math.isfinite(interval_s)):
            raise ConfigError(
                "making a live view",
                found=f"interval_s is {interval_s!r}",
                advice="Give seconds above 0; the query itself polls at each call.",
            )
        self.info: QueryInfo = query.info
        self.blocks = query.blocks
        self._client = client
        self._query = query
        self._wanted = wanted
        self._looks = _Looks(client.clock, look, interval_s)

    def __repr__(self) -> str:
        return f"LiveView({self._query!r}, interval_s={self._looks.interval_s:g})"

    def current(self) -> QueryView:
        """Returns the current version, for related calls or to know its batch.

        The result is an ordinary view, which does not follow the query.

        Raises:
            NotFoundError: The query has no state, or no such operator.
            RedisStateError: See `OperatorState.get`.
        """
        return self._looks.current()

    def operators(self) -> list[OperatorInfo]:
        """Returns the stores that can be read, as the last poll listed them."""
        return self.current().operators()

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> QueryView:
        """Opens a view now, whatever the interval; see `Query.view`."""
        return self._query.view(operator, version, **which)

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns metadata of a store from the last poll, or from a new one if needed."""
        last = self._looks.last
        found = None if last is None else last.known(operator, store)
        return self.listed(operator, store) if found is None else found

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """Returns metadata of a store from the current poll."""
        return self.current().known(operator, store)

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """Returns the partitions of a store.

        A call for all partitions may read for long, and cached segments may expire at any moment,
        so all partitions are opened anew.

        Raises:
            ConfigError: The request names another version.
            RedisStateError: See `current` and `QueryView.open_at`.
        """
        if wanted != NEWEST:
            raise ConfigError(
                "reading a live view",
                found=(
                    "a version or max_age was given, but a live view reads the newest confirmed "
                    "version"
                ),
                advice="Omit version, uids, at and max_age, or read the query itself.",
            )
        view = self.current()
        if only is None and view.known(operator, store) is not None:
            view = self.view(operator, at=self._wanted.at)
        return view.open_at(operator, store, NEWEST, only=only)

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """Returns a store and its partitions, to read many versions; see `Query.partitions`."""
        return self._query.partitions(operator, store)

    def store_id(self, operator: int, store: str) -> StoreId:
        """Returns the id of a store; see `Query.store_id`."""
        return self._query.store_id(operator, store)

    def moved(self, opened: Opened) -> None:
        """Records that the segments of a version have changed."""
        self._query.moved(opened)
        last = self._looks.last
        if last is not None:
            last.moved(opened)


class _Looks:
    """The view of the last poll, and its expiry."""

    def __init__(
        self, clock: Clock, look: Callable[[QueryView | None], QueryView], interval_s: float
    ) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._look = look
        self._found: tuple[QueryView, float] | None = None
        self._failed: tuple[RedisStateError, float] | None = None
        self._lock = threading.Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Replaces the lock: a thread of the parent process may have held it."""
        self._lock = threading.Lock()

    @property
    def last(self) -> QueryView | None:
        """The view of the last poll, however long ago; ``None`` before the first one."""
        return None if self._found is None else self._found[0]

    def current(self) -> QueryView:
        """Returns the view of the last poll, or of a new one.

        A poll that began after the call is recent enough, however long it took, and so is its
        failure. Waiters share the result of the thread that is already polling.
        """
        asked_s = self._clock.monotonic_s()
        return self._valid(asked_s) or self._made(asked_s)

    def _valid(self, asked_s: float) -> QueryView | None:
        found = self._found
        return found[0] if found is not None and asked_s < found[1] else None

    def _made(self, asked_s: float) -> QueryView:
        with self._lock:
            view = self._valid(asked_s)
            if view is not None:
                return view
            if self._failed is not None and asked_s < self._failed[1]:
                raise self._failed[0].with_traceback(None)
            began_s = self._clock.monotonic_s()
            try:
                view = self._look(self.last)
            except RedisStateError as error:
                self._failed = error, began_s
                raise
            self._found, self._failed = (view, began_s + self.interval_s), None
            return view
