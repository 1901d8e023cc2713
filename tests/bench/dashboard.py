"""`python -m tests.bench.dashboard [--quick]`: the dashboard's page of 1,000 queries.

Each query is a real one: two partitions, three versions, ten rows in a partition. The dashboard
runs as its own process. *Look* is one look of its own thread; *page* is from the request to the
last byte, as a browser asks for it. `--pictures` draws those of docs/dashboard.md instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize

import redis_state
from redis_state import connect
from redis_state.backend.client import Client
from redis_state.config import parse
from redis_state.live import Reader
from tests.bench.page import add_write_option, show
from tests.support.browser import running_browser
from tests.support.dashboard import Dashboard, serving, write_query
from tests.support.waiting import wait_until

QUERIES, QUERIES_QUICK = 1000, 100
PARTITIONS = 2
VERSIONS = 3
TIMES = 20
TARGET_S = 1.0
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
_NAMES = ("baskets left", "clicks per minute", "devices seen", "fraud scores", "sessions")
_SCREENS: dict[str, ViewportSize] = {
    "dashboard": {"width": 1080, "height": 560},
    "dashboard-query": {"width": 1080, "height": 1100},
}
_LOOKS = 8


def write_queries(url: str, count: int) -> None:
    client = Client(parse({"url": url}))
    try:
        for number in range(count):
            write_query(
                url,
                f"query {number}",
                partitions=PARTITIONS,
                versions=VERSIONS,
                rows=lambda _, version: dict.fromkeys(range(10), version),
                client=client,
            )
    finally:
        client.close()


def seconds(of: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        of()
        found.append(time.perf_counter() - began)
    return found


def measure(url: str, count: int, log: Path) -> dict[str, list[float]]:
    write_queries(url, count)
    with connect(url) as reader:
        reader.status()
        found = {"look, s": seconds(reader.status)}
        gen = reader.query("query 7").info.gen
    with Dashboard(url, log=log) as board:
        assert board.get("/").body.count('<th scope="row">') == count
        found["page of all queries, s"] = seconds(lambda: board.get("/?sort=-bytes"))
        found["page of one query, s"] = seconds(lambda: board.get(f"/query/{gen}"))
    return found


def report(found: dict[str, list[float]], *, count: int, command: str) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    lines = [
        f"`{command}` on {machine}, {date.today().isoformat()}: {count:,} queries of {PARTITIONS} "
        f"partitions and {VERSIONS} versions on one server, each figure {TIMES} times; the load of "
        f"the machine was {os.getloadavg()[0]:.1f}.",
        "",
        "| figure | median | largest |",
        "|---|---|---|",
        *(
            f"| {title} | {statistics.median(each):.3f} | {max(each):.3f} |"
            for title, each in found.items()
        ),
    ]
    slowest = max(found["page of all queries, s"])
    met = "Met" if slowest <= TARGET_S else "Missed"
    lines += ["", f"Target: the page of all within {TARGET_S:g} s. {met}: {slowest:.3f} s."]
    return "\n".join(lines)


def _same(count: int) -> Callable[[int, int], dict[object, object]]:
    return lambda _, version: dict.fromkeys(range(count), version)


def _wait_for_another(shown: Callable[[], str]) -> None:
    before = shown()
    wait_until(lambda: shown() != before, "the next look")


def draw(url: str, log: Path, browser: Browser) -> None:
    """Fills a server as an installation looks, and takes the pictures."""
    dice = random.Random(7)
    for name in _NAMES:
        write_query(url, name, partitions=4, rows=_same(dice.randrange(50, 900)))
    orders, partitions = "orders per customer", 32
    sizes = [5 + int(dice.paretovariate(1.3) * 20) for _ in range(partitions)]
    rows = [[0]]

    def changed(partition: int, _: int) -> dict[object, object]:
        return dict.fromkeys(range(rows[0][0] + sizes[partition]), dice.random())

    write_query(url, orders, partitions=partitions, versions=3, rows=changed)
    hosts = ["worker-1", "worker-2", "worker-3", "worker-4"] * (partitions // 4)
    with (
        serving(url, orders, hosts),
        serving(url, _NAMES[-1], hosts[:4]),
        Dashboard(url, log=log) as board,
        Reader(parse({"url": url})) as reader,
    ):
        gen = reader.query(orders).info.gen
        for look in range(_LOOKS):
            rows[0][0] += dice.randrange(5, 60)
            write_query(url, orders, partitions=4, versions=1, since=3 + look, rows=changed)
            _wait_for_another(lambda: board.get(f"/query/{gen}").page.facts["Rows"])
        for name, path, scheme in (
            ("dashboard", "/?sort=-bytes", "light"),
            ("dashboard-query", f"/query/{gen}", "dark"),
        ):
            context = browser.new_context(
                color_scheme="dark" if scheme == "dark" else "light", viewport=_SCREENS[name]
            )
            page = context.new_page()
            page.goto(board.origin + path)
            page.screenshot(path=PICTURES / f"{name}.png")
            context.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.dashboard", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUERIES_QUICK:,} queries")
    add_write_option(parser)
    parser.add_argument("--pictures", action="store_true", help="draw, and measure nothing")
    options = parser.parse_args()
    count = QUERIES_QUICK if options.quick else QUERIES
    command = f"python -m tests.bench.dashboard{' --quick' if options.quick else ''}"
    with (
        tempfile.TemporaryDirectory(prefix="redis-state-bench-") as scratch,
        redis_state.EmbeddedRedis() as server,
    ):
        if options.pictures:
            with running_browser() as browser:
                draw(server.url, Path(scratch) / "log", browser)
            return 0
        text = report(
            measure(server.url, count, Path(scratch) / "log"), count=count, command=command
        )
    show(text, command, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
