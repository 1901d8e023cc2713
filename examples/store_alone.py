"""The store without Spark: versions, transactions and scans in any Python process.

Two versions are committed, a third is aborted, and an old one is read again. Only Redis is needed.
Run it with `python examples/store_alone.py`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import redis_state
from redis_state import StateStoreId, StateStoreProviderId, stores

ORDERS = StateStoreProviderId(StateStoreId(f"orders {os.getpid()}", operator_id=0, partition_id=0))


def main() -> None:
    with ExitStack() as stack:
        url = os.environ.get("REDIS_STATE_URL")
        url = url or stack.enter_context(redis_state.EmbeddedRedis()).url
        stack.callback(stores.stop)

        # Every key expires by itself after this process has ended.
        store = stores.get(ORDERS, 0, url=url, ephemeral=True)
        store.put(("de", 1), {"status": "open", "total": 20})
        store.put(("de", 2), {"status": "open", "total": 35})
        store.put(("fr", 1), {"status": "open", "total": 50})
        first = store.commit()
        print("committed: version", first)

        store = stores.get(ORDERS, first, url=url, ephemeral=True)
        store.put(("de", 1), {"status": "paid", "total": 20})
        store.remove(("fr", 1))
        second = store.commit()
        print("committed: version", second)

        store = stores.get(ORDERS, second, url=url, ephemeral=True)
        store.put(("de", 2), {"status": "lost", "total": 0})
        store.abort()

        now = stores.get_read_only(ORDERS, second, url=url, ephemeral=True)
        print("now:", {key: value["status"] for key, value in now.iterator()})
        print("total of 'de':", sum(value["total"] for _, value in now.prefix_scan(("de",))))
        before = stores.get_read_only(ORDERS, first, url=url, ephemeral=True)
        print(f"version {first}:", {key: value["status"] for key, value in before.iterator()})


if __name__ == "__main__":
    main()
