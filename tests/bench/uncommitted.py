"""`python -m tests.bench.uncommitted [--quick]`: the price of rows that are read before the commit.

Two queries with the same rows take turns in random order: one with `publishEvery`, one without. The
batches are long, so that each has previews; the benchmark counts them. The states have to be equal
before a figure is printed.
"""

from __future__ import annotations

import sys

from tests.bench.option_price import OptionPrice
from tests.bench.workloads import Workload
from tests.support.redis_server import RedisServer

FULL = Workload("1 M keys", keys=1_000_000, updates=500_000, warm_up=5, measured=40)
QUICK = Workload("200 k keys", keys=200_000, updates=200_000, warm_up=3, measured=8)


def lines(server: RedisServer) -> list[str]:
    """Returns the line of the slices that have not expired yet."""
    found = sum(1 for _ in server.client().scan_iter(match="*}:u:*"))
    if not found:
        raise SystemExit("no rows were published: the batches are too short")
    return [f"| slices of the last two minutes | {found} | 0 | | |"]


PRICE = OptionPrice("tests.bench.uncommitted", __doc__, "publishEvery", "200ms", FULL, QUICK, lines)

if __name__ == "__main__":
    sys.exit(PRICE.main())
