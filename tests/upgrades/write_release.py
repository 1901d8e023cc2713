"""Keeps what today's release leaves behind, for every later release to read.

    python -m tests.upgrades.write_release

Runs each query of `KEPT` on a server of its own, keeps its checkpoint, its keys and its rows in
`tests/releases/VERSION`, and what the query gives out afterwards. A folder that is there is not
replaced: what a release wrote does not change. docs/releasing.md says when.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyspark

import redis_state
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import FORMAT, REDIS, Output, Streams
from tests.support.redis_server import RedisServer
from tests.support.releases import FOLDER, files_of, keys_of, rows_of, save
from tests.upgrades.job import run, session

KEPT = {
    "aggregation": ("aggregation", "1"),
    "aggregation in format 2": ("aggregation", "2"),
    "full outer join in format 2": ("stream-stream join, full_outer", "2"),
    "processor": ("transformWithStateInPandas", "1"),
}
"""Query of `job.py` and checkpoint format, by the name of the file."""


def write(name: str, server: RedisServer, folder: Path) -> None:
    query, number = KEPT[name]
    spark = session(server.url, folder)
    spark.conf.set(FORMAT, number)
    streams, output = Streams(spark, folder), Output()
    run(streams, query, 0, REDIS, output)
    checkpoint = streams.checkpoint(query)
    gen = gen_of(folder_at(str(checkpoint)))
    with redis_state.connect(server.url) as reader:
        rows = rows_of(reader, gen)
    left = {
        "spark": pyspark.__version__,
        "query": query,
        "format": number,
        "gen": gen,
        "folder": str(folder),
        "files": files_of(checkpoint),
        "keys": keys_of(server),
        "rows": rows,
    }
    before = set(output)
    run(streams, query, 1, REDIS, output)
    left["later"] = {str(n): lines for n, lines in output.items() if n not in before}
    spark.stop()
    save(f"{redis_state.__version__}/{name.replace(' ', '-')}", left)


def main() -> int:
    target = FOLDER / redis_state.__version__
    if target.exists():
        print(f"{target} is there: what a release wrote does not change", file=sys.stderr)
        return 1
    for name in KEPT:
        with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
            write(name, server, Path(folder))
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
