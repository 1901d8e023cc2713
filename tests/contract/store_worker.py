"""Processes of `test_store_processes`: `python -m tests.contract.store_worker ROLE URL NAME …`."""

from __future__ import annotations

import json
import sys
import uuid

from redis_state.errors import ConflictError, StateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider

BATCHES = 5
ROWS = 200
CONFIRMED_MIN = 12
TRIES_MAX = 3000


def fill(url: str, name: str, partition: str) -> list[int]:
    """Writes some versions of its own partition, each read from the one before."""
    id_ = StateStoreProviderId(StateStoreId(name, 0, int(partition)), "one-run")
    provider = StateStoreProvider(id_, config=url)
    for version in range(BATCHES):
        store = provider.get_store(version)
        for number in range(ROWS):
            store.put(number, (store.get(number) or 0) + int(partition) + 1)
        store.commit()
    provider.do_maintenance()
    provider.close()
    return [BATCHES]


def fight(url: str, name: str, who: str) -> list[list[object]]:
    """Adds to the log of a partition that another process adds to as well.

    Returns:
        The entries that are certain: the same run has built upon them.
    """
    certain: list[list[object]] = []
    tries = 0
    while len(certain) < CONFIRMED_MIN:
        run = uuid.uuid4().hex
        provider = StateStoreProvider(
            StateStoreProviderId(StateStoreId(name, 0, 0), run), config=url
        )
        last: list[object] | None = None
        version = provider.latest() or 0
        try:
            while len(certain) < CONFIRMED_MIN:
                tries += 1
                if tries > TRIES_MAX:
                    raise RuntimeError("the other process never lets this one through")
                store = provider.get_store(version)
                entry: list[object] = [who, tries]
                store.put("log", [*(store.get("log") or []), entry])
                version = store.commit()
                if last is not None:
                    certain.append(last)
                last = entry
        except (ConflictError, StateError):
            # The other run took the partition: begin anew from what is there.
            continue
        finally:
            provider.close()
    return certain


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    found = {"fill": fill, "fight": fight}[role](*arguments)
    print(json.dumps(found))
