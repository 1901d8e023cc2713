"""A checkpoint that Python keeps on the same server: its stores, runs, forks and times of rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.errors import ConflictError, StateError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store import StateStore
from redis_state.store.provider import StateStoreProvider
from tests.support.forking import in_child

if TYPE_CHECKING:
    from tests.faults.system.schedule import Schedule

_KEYS = 4
_PUTS_MAX = 3
_TIMED_EVERY = 4
_TTLS = (None, "1h", "2h")


class PythonStores:
    """One partition, whose acknowledged commits plain dicts repeat.

    Attributes:
        idle_ms: How much time went by since Redis was told that it is in use: by a run's first
            write, by each commit, and when it was called back.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._play = schedule
        self._begun = 0
        self._runs = 0
        self._forget()

    def _forget(self) -> None:
        self._provider: StateStoreProvider | None = None
        self._store: StateStore | None = None
        self._rows: dict[str, int] = {}
        self._changed: dict[str, int] = {}
        self._puts = 0
        self._holds = False
        self._version = 0
        self.history: dict[int, dict[str, int]] = {}
        self.idle_ms = 0
        self._is_timed = self._play.dice.one_in(_TIMED_EVERY)

    @property
    def exists(self) -> bool:
        """Returns whether the store has a version."""
        return self._version > 0

    @property
    def newest(self) -> tuple[dict[str, int], int]:
        """Rows and number of the newest version that was acknowledged."""
        return self._rows, self._version

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return f"python {self._begun}"

    def gen(self) -> str | None:
        """The checkpoint's id; `None` before the first write."""
        found = self._play.lab.redis("HGET", keys.names(tenant=""), keys.name_field(self.name))
        return found.decode() if found else None

    # ---- what its process does --------------------------------------------------------------

    def act(self) -> None:
        """The next thing that it does."""
        if self._store is None:
            self._open()
            return
        steps: tuple[Callable[[], None], ...] = (
            *(self._put, self._commit, self._put, self._commit),
            *(self._abort, self._other_run, self._sibling, self._fork),
        )
        self._play.dice.choice(steps)()

    def write(self) -> None:
        """One batch, from its beginning to its end."""
        if self._store is None:
            self._open()
        self._put()
        self._commit()

    def _new_provider(self) -> StateStoreProvider:
        self._runs += 1
        id_ = StateStoreProviderId(StateStoreId(self.name, 0, 0), f"py-{self._runs}")
        ttl = None
        if self._is_timed:
            # Nothing expires so soon; each process may turn it on or off, or change it.
            ttl = self._play.dice.choice(_TTLS)
            self._play.lab.counters["processes of Python with a time to live"] += ttl is not None
        return StateStoreProvider(id_, url=self._play.lab.url, state_ttl=ttl)

    def _open(self) -> None:
        if self._provider is None:
            self._begun += self._version == 0
            self._provider, self._holds = self._new_provider(), False
        self._store = self._provider.get_store(self._version)
        self._changed, self._puts = dict(self._rows), 0
        self._compare(dict(self._store.iterator()), self._rows, "opened")

    def _put(self) -> None:
        store, dice = self._store, self._play.dice
        assert store is not None
        for _ in range(dice.between(1, _PUTS_MAX)):
            key = f"k{dice.below(_KEYS)}"
            if dice.one_in(4):
                store.remove(key)
                self._changed.pop(key, None)
            else:
                self._changed[key] = dice.below(1 << 30)
                store.put(key, self._changed[key])
        self._puts += 1
        if not self._holds:
            self._holds, self.idle_ms = True, 0

    def _commit(self) -> None:
        assert self._store is not None
        self._committed(self._store.commit(), self._changed)
        self._store = None

    def _committed(self, version: int, rows: dict[str, int]) -> None:
        self._play.lab.counters["commits by Python"] += 1
        if version != self._version + 1:
            self._play.world.problem(f"{self.name}: {version} follows {self._version}")
        self._version, self._rows, self.idle_ms = version, dict(rows), 0
        self.history[version] = self._rows
        self.look()

    def _abort(self) -> None:
        assert self._store is not None
        self._store.abort()
        self._store = None

    def _sibling(self) -> None:
        """Two stores of one version: the last one to commit counts."""
        first, rows, provider = self._store, self._changed, self._provider
        assert first is not None
        assert provider is not None
        self._open()
        second = self._store
        assert second is not None
        self._put()
        first.put("sibling", 1)
        self._holds = True
        rows = rows | {"sibling": 1}
        before = self._version
        self._committed(first.commit(), rows)
        self._version = before
        self._committed(second.commit(), self._changed)
        self._store = None
        self._play.lab.counters["siblings of Python"] += 1

    def _other_run(self) -> None:
        """Another process takes the partition: what this one does from now on is refused."""
        if not self._puts:
            self._put()
        store, provider = self._store, self._provider
        assert store is not None
        assert provider is not None
        self._provider, self._store, self._holds = self._new_provider(), None, False
        self._open()
        self._put()
        if self._play.dice.one_in(2):
            self._commit()
        try:
            store.put("zombie", 1)
            told: Any = store.commit()
        except ConflictError:
            self._play.lab.counters["runs of Python that were overtaken"] += 1
        else:
            self._play.world.problem(f"{self.name}: a run that was overtaken committed {told}")
        store.abort()
        provider.close()

    def _fork(self) -> None:
        """A copy of the process uses what its parent has opened."""
        store, provider = self._store, self._provider
        assert store is not None
        assert provider is not None
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: store.put("fork", 1),
            "commit": store.commit,
            "open": lambda: provider.get_store(self._version),
        }

        def child() -> list[str]:
            return [name for name, call in calls.items() if _works(call)]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            worked = in_child(child)
        self._play.lab.counters["forks with an open store"] += 1
        if worked:
            self._play.lab.counters["used in a forked process"] += 1
            self._play.world.problem(f"{self.name}: a forked process could {', '.join(worked)}")
        self.look()

    # ---- what it has to find ----------------------------------------------------------------

    def look(self) -> None:
        """A process that has nothing cached reads the newest version that was acknowledged."""
        if not self.exists:
            return
        provider = self._new_provider()
        try:
            rows = dict(provider.get_read_store(self._version).iterator())
            self._compare(rows, self._rows, "read")
        except StateError as error:
            self._play.lab.counters["false lost"] += 1
            self._play.world.problem(f"{self.name}: version {self._version}: {error}")
        finally:
            provider.close()

    def _compare(self, found: dict[str, int], wanted: dict[str, int], how: str) -> None:
        self._play.lab.counters["loads compared"] += 1
        if found != wanted:
            self._play.lab.counters["wrong"] += 1
            self._play.world.problem(
                f"{self.name}: {how} {found} as version {self._version}, not {wanted}"
            )

    def server_lost_all(self) -> None:
        """No empty start: whoever asks for the version is told. Then it begins anew."""
        if self.exists:
            provider = self._new_provider()
            try:
                provider.get_store(self._version)
            except StateError as error:
                self._play.told_loss("Python", error)
            else:
                self._play.world.problem(f"{self.name}: opened a version that is lost")
            finally:
                provider.close()
        self.close()
        self._forget()

    def close(self) -> None:
        """Its process ends."""
        if self._store is not None:
            self._store.abort()
        if self._provider is not None:
            self._provider.close()
        self._provider = self._store = None


def _works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except UsageError:
        return False
    return True
