"""What a query has confirmed, looked for a few times a second, for very many calls."""

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
from redis_state.reader.versions import NEWEST, VersionRequest
from redis_state.reader.view import QueryView, ViewedQuery

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redis_state.reader.versions import Which

INTERVAL_S = 0.1
"""Seconds between two looks, unless it is said."""


class LiveView(Operators):
    """A query as it is confirmed now, or was at most an interval ago; `Query.live_view` makes it.

    Between two looks for a newer version, reads of blocks that are known ask nothing of Redis, and
    all are of one version. A look asks for the list of stores and three fields of each partition,
    and for what is new if something is. If it fails, the read that needed it fails, too: nothing
    older than the interval is given. It holds no connection, needs no closing, and is safe to share
    between threads: one of them looks, and the others that need the answer wait for it.

    Attributes:
        info: What the list of checkpoints says of the query.
        blocks: As those of the query.
    """

    def __init__(
        self,
        client: Client,
        query: ViewedQuery,
        look: Callable[[QueryView | None], QueryView],
        interval_s: float,
    ) -> None:
        is_number = isinstance(interval_s, (int, float)) and not isinstance(interval_s, bool)
        if not (is_number and interval_s > 0 and math.isfinite(interval_s)):
            raise ConfigError(
                "making a live view",
                found=f"interval_s is {interval_s!r}",
                advice="Give seconds above 0; the query itself looks at each call.",
            )
        self.info: QueryInfo = query.info
        self.blocks = query.blocks
        self._client = client
        self._query = query
        self._looks = _Looks(client.clock, look, interval_s)

    def __repr__(self) -> str:
        return f"LiveView({self._query!r}, interval_s={self._looks.interval_s:g})"

    def current(self) -> QueryView:
        """The version that is read now: for calls that belong together, or to know its batch.

        It stays as it is, as any view, while the live one goes on.

        Raises:
            NotFoundError: The query has no state, or no such operator.
            RedisStateError: As `OperatorState.get`.
        """
        return self._looks.current()

    def operators(self) -> list[OperatorInfo]:
        """The stores that can be read, as they were listed at the last look."""
        return self.current().operators()

    def view(
        self,
        operator: int | None = None,
        version: int | None = None,
        **which: Unpack[Which],
    ) -> QueryView:
        """As `Query.view`: it is looked for now, whatever the interval."""
        return self._query.view(operator, version, **which)

    def known(self, operator: int, store: str) -> OperatorInfo | None:
        """What the last look found out about a store, or one that is made now."""
        last = self._looks.last
        found = None if last is None else last.known(operator, store)
        return self.listed(operator, store) if found is None else found

    def listed(self, operator: int, store: str) -> OperatorInfo | None:
        """What the look of now finds out about a store."""
        return self.current().known(operator, store)

    def open_at(
        self,
        operator: int,
        store: str,
        wanted: VersionRequest,
        *,
        only: Sequence[int] | None = None,
    ) -> tuple[OperatorInfo, list[Opened]]:
        """The partitions of a store.

        Who wants all of them may read for long, and what was known of a version may expire any
        moment: those are opened anew.

        Raises:
            ConfigError: Another version was asked for.
            RedisStateError: As `current`, and as `QueryView.open_at`.
        """
        if wanted != NEWEST:
            raise ConfigError(
                "reading a live view",
                found="a version or max_age was given, and it reads the newest confirmed version",
                advice="Leave version, uids, at and max_age out, or read the query itself.",
            )
        view = self.current()
        if only is None and view.known(operator, store) is not None:
            view = self.view(operator)
        return view.open_at(operator, store, NEWEST, only=only)

    def partitions(self, operator: int, store: str) -> tuple[OperatorInfo, list[PartitionId]]:
        """As `Query.partitions`, for what looks at many versions."""
        return self._query.partitions(operator, store)

    def store_id(self, operator: int, store: str) -> StoreId:
        """As `Query.store_id`."""
        return self._query.store_id(operator, store)

    def moved(self, opened: Opened) -> None:
        """Take note that a version is made up of other segments now."""
        self._query.moved(opened)
        last = self._looks.last
        if last is not None:
            last.moved(opened)


class _Looks:
    """The view that the last look has made, while it is not over."""

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
        """What another thread was just asking is nobody's here."""
        self._lock = threading.Lock()

    @property
    def last(self) -> QueryView | None:
        """The view of the last look, however long ago; ``None`` before the first one."""
        return None if self._found is None else self._found[0]

    def current(self) -> QueryView:
        """The view of the last look, or of one that is made now.

        A look that began after the call is good enough for it, however long it took, and so is its
        failure: who waits for another thread's look does not look again.
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
