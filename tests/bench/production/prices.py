"""List prices of requests to an object store."""

from __future__ import annotations

from collections.abc import Mapping

WRITE_USD_PER_1000 = 0.005
READ_USD_PER_1000 = 0.0004
SOURCE = (
    "list prices of S3 Standard in us-east-1; look yours up: https://aws.amazon.com/s3/pricing/"
)
"""`PUT`, `COPY`, `POST` and `LIST`; `GET` and all others; `DELETE` is free."""

WRITES = frozenset({"PUT", "COPY", "POST", "LIST"})
FREE = frozenset({"DELETE"})
DAY_S = 86_400


def usd_a_day(requests: Mapping[str, int], batches: int, *, pace_s: float) -> float:
    """Price of a day with a batch each `pace_s` seconds.

    Args:
        requests: Of `batches` batches, by kind.
    """
    writes = sum(count for kind, count in requests.items() if kind in WRITES)
    reads = sum(count for kind, count in requests.items() if kind not in WRITES | FREE)
    usd = (writes * WRITE_USD_PER_1000 + reads * READ_USD_PER_1000) / 1000
    return usd / batches * DAY_S / pace_s
