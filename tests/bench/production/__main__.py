"""`python -m tests.bench.production [--quick]`: batches whose checkpoint is on an S3 server.

The S3 server is behind a proxy that adds a latency to each request and limits the bandwidth of each
connection; Redis is behind one that adds a round-trip time. Two executors of two cores are
processes. The same query runs on our provider, HDFSBacked, and RocksDB with change log, batch by
batch in random order, with maintenance; outputs have to be equal.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyspark

from tests.bench.page import add_write_option, show
from tests.bench.production.cluster import MANAGERS, Cluster, Network, cluster
from tests.bench.production.kills import Recovery, measure_kills
from tests.bench.production.lanes import lanes
from tests.bench.production.measure import Measured, measure, warm_up
from tests.bench.production.pings import median_ping_ms
from tests.bench.production.queries import QUERIES, Size
from tests.bench.production.tables import Result, write_tables

COMMAND = "python -m tests.bench.production"
_REDIS_MS = (1.0, 0.3, 3.0)
_PARTITIONS = (4, 16)


@dataclass(frozen=True, slots=True)
class Amounts:
    """Numbers of batches: of the main setting, of the others, unmeasured ones; and of kills."""

    batches: int
    short: int
    warm_up: int
    kills: int

    @property
    def warm_up_again(self) -> int:
        """Returns the warm-up of later settings, whose code is mostly compiled already."""
        return (self.warm_up + 1) // 2


_FULL = Amounts(batches=300, short=60, warm_up=30, kills=5)
_QUICK = Amounts(batches=20, short=8, warm_up=5, kills=1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few batches: a few minutes, no figures to quote"
    )
    add = parser.add_argument_group("network").add_argument
    add("--objects-ms", type=float, default=15.0, help="latency of a request to the object store")
    add("--objects-mb", type=float, default=80.0, help="MB/s of a connection to it")
    add(
        "--redis-ms",
        type=_floats,
        default=_REDIS_MS,
        metavar="MS,...",
        help="round-trip times to Redis, the main one first (1,0.3,3)",
    )
    add = parser.add_argument_group("work").add_argument
    add(
        "--partitions",
        type=_ints,
        default=_PARTITIONS,
        metavar="N,...",
        help="numbers of partitions, the main one first (4,16)",
    )
    add(
        "--queries",
        type=_queries,
        default=tuple(QUERIES),
        metavar="NAME,...",
        help=f"the main one first ({','.join(QUERIES)})",
    )
    add("--keys", type=int, default=100_000, help="distinct keys")
    add("--rows", type=int, default=5_000, help="rows of a batch, of each input")
    add("--batches", type=int, help="of the main setting, each provider (300; quick: 20)")
    add("--short-batches", type=int, help="of the other settings (60; quick: 8)")
    add(
        "--warm-up",
        type=int,
        help="unmeasured batches first (30; quick: 5); half before later settings",
    )
    add("--kills", type=int, help="killed executors of each provider (5; quick: 1)")
    add = parser.add_argument_group("Spark").add_argument
    add(
        "--manager",
        choices=sorted(MANAGERS),
        default="abortable",
        help="how Spark writes the files of a checkpoint, all three providers",
    )
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the application; may be repeated",
    )
    add_write_option(parser)
    return parser


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _queries(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= QUERIES.keys():
        raise argparse.ArgumentTypeError(f"the queries are {', '.join(QUERIES)}")
    return names


def _amounts(options: argparse.Namespace) -> Amounts:
    default = _QUICK if options.quick else _FULL

    def of(asked: int | None, other: int) -> int:
        return other if asked is None else asked

    return Amounts(
        batches=of(options.batches, default.batches),
        short=of(options.short_batches, default.short),
        warm_up=of(options.warm_up, default.warm_up),
        kills=of(options.kills, default.kills),
    )


def _measured(place: Cluster, options: argparse.Namespace, amounts: Amounts) -> Iterator[Measured]:
    """Yields the main setting, then the others, in each of which one thing differs."""
    size = Size(options.keys, options.rows)
    main_ms, *other_ms = options.redis_ms
    main_partitions, *more_partitions = options.partitions
    main_query, *other_queries = options.queries
    groups = [
        (main_query, main_partitions, [(main_ms, amounts.batches)]),
        *((main_query, partitions, []) for partitions in more_partitions),
        *((query, main_partitions, []) for query in other_queries),
    ]
    groups[0][2].extend((ms, amounts.short) for ms in other_ms)
    for name, partitions, steps in groups:
        with lanes(place, f"{name}-{partitions}", QUERIES[name], size, partitions) as made:
            place.redis_link.set_round_trip(main_ms)
            warm_up(made, amounts.warm_up if steps else amounts.warm_up_again)
            for ms, count in steps or [(main_ms, amounts.short)]:
                yield measure(place, made, ms, count)


def _killed(
    place: Cluster, options: argparse.Namespace, amounts: Amounts
) -> dict[str, list[Recovery]]:
    if not amounts.kills:
        return {}
    name, partitions = options.queries[0], options.partitions[0]
    place.redis_link.set_round_trip(options.redis_ms[0])
    size = Size(options.keys, options.rows)
    with lanes(place, "killed", QUERIES[name], size, partitions) as made:
        warm_up(made, amounts.warm_up_again)
        return measure_kills(place.spark, made, amounts.kills)


def _links(place: Cluster, options: argparse.Namespace) -> list[str]:
    """Measures the delays that the proxies really added."""
    straight = median_ping_ms(place.direct)
    lines = [f"A `PING` of Redis took {straight:.2f} ms at the median without its proxy."]
    for ms in sorted(options.redis_ms):
        place.redis_link.set_round_trip(ms)
        found = median_ping_ms(place.linked)
        lines.append(f"With {ms:g} ms asked for, it took {found - straight:.2f} ms longer.")
    for title, proxy in (("Redis", place.redis_link), ("the object store", place.object_proxy)):
        late = proxy.report()
        lines.append(
            f"Over the run the proxy of {title} sent its chunks {late['late_p50_ms']:.2f} ms late "
            f"at the median, {late['late_p99_ms']:.2f} ms at p99."
        )
    return [" ".join(lines)]


def _setup(options: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Spark {pyspark.__version__}"
    own = f", `{' '.join(options.conf)}`" if options.conf else ""
    return (
        f"`{COMMAND}{' --quick' if options.quick else ''}` on {machine}, "
        f"{date.today().isoformat()}: objects at {options.objects_ms:g} ms and "
        f"{options.objects_mb:g} MB/s, {options.keys:,} keys, {options.rows:,} rows a batch and "
        f"input; checkpoint files by `{MANAGERS[options.manager].rpartition('.')[2]}`{own}; the "
        f"load of the machine was {os.getloadavg()[0]:.1f}."
    )


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    settings = dict(word.split("=", 1) for word in options.conf)
    amounts = _amounts(options)
    network = Network(options.objects_ms, options.objects_mb, options.redis_ms[0])
    # Ends what was started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        cluster(Path(scratch), network, manager=options.manager, settings=settings) as place,
    ):
        found = list(_measured(place, options, amounts))
        kills = _killed(place, options, amounts)
        links = _links(place, options)
    text = write_tables(Result(_setup(options), found, kills, links))
    show(text, COMMAND, options.write)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
