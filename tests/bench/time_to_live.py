"""`python -m tests.bench.time_to_live [--quick]`: the price of rows that expire.

Two queries with the same rows take turns in random order: one with a time to live that no row
reaches, one without. Their states have to be equal before a figure is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import cast

from redis_state.format.entry import Segment, segments_in
from tests.bench.option_price import OptionPrice
from tests.bench.pairs import aim
from tests.bench.workloads import Workload
from tests.support.redis_server import RedisServer

FULL = Workload("1 M keys", keys=1_000_000, updates=50_000, warm_up=10, measured=40)
QUICK = Workload("200 k keys", keys=200_000, updates=20_000, warm_up=3, measured=10)
ROW_BYTES_MAX = 0.5


def row_bytes(server: RedisServer) -> Mapping[bool, float]:
    """Returns bytes of a row in the newest snapshots, by whether rows expire."""
    client = server.client()
    total = {True: [0, 0], False: [0, 0]}
    for meta in client.scan_iter(match="*:m"):
        manifest = cast("Mapping[bytes, bytes]", client.hgetall(meta))
        snapshots = [one for one in segments_in(manifest) if one.snapshot]
        newest: Segment = max(snapshots, key=lambda one: one.version)
        found = total[newest.entry.time > 0]
        found[0] += newest.entry.bytes
        found[1] += newest.entry.rows
    return {expires: size / rows for expires, (size, rows) in total.items()}


def lines(server: RedisServer) -> list[str]:
    """Returns the line of the bytes of a row."""
    found = row_bytes(server)
    more = found[True] - found[False]
    return [
        f"| bytes of a row in a snapshot | {found[True]:.2f} | {found[False]:.2f} "
        f"| {more:+.2f} | {aim(ROW_BYTES_MAX, more)} |"
    ]


PRICE = OptionPrice("tests.bench.time_to_live", __doc__, "stateTtl", "30d", FULL, QUICK, lines)

if __name__ == "__main__":
    sys.exit(PRICE.main())
