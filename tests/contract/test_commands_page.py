"""docs/commands.md: its commands run, and print what stands there.

`python -m tests.contract.test_commands_page` writes what they print into the page.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from redis_state import keys
from redis_state.cli.main import build_parser, main
from redis_state.cli.other.completion import commands_of
from redis_state.protocol.instances import Instance
from redis_state.reader import CauseKind, SlowCauseKind
from tests.contract.planting import QUERY_ID, Planted
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
README = PAGE.parents[1] / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
STATUSES = {"why-growing sessions": 4, "why-slow flights": 4, "get flights carrier=ZZ --json": 3}
RECENT = {
    "ms": 412_000, "opens": 90, "openUs": 41_000, "loads": 1, "loadUs": 9_000, "commits": 90,
    "commitUs": 160_000, "encodeUs": 70_000, "workUs": 9_100_000, "misses": 3_400,
    "missUs": 7_900_000, "buckets": 6_100, "reloaded": 5_200, "rows": 45_000, "roundTrips": 3_600,
    "redisUs": 4_100_000, "openTimes": [12, 61, 17], "foldUs": 90_000, "maintenanceUs": 50_000,
    "versions": 90, "localBytes": 1_061_000_000, "localMax": 1_073_741_824,
}  # fmt: skip
"""Report of an executor whose local memory is too small."""
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX")


class Terminal(io.StringIO):
    """Output of a command that sees a terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def plant(server: RedisServer) -> None:
    """A query over flights that runs, and one over sessions that only grows."""
    client = server.client()
    now_ms = client.time()[0] * 1000
    flights = Planted(client, partitions=2)
    flights.register()
    for version in range(1, 4):
        rows = [({"carrier": one}, {"count": 7 * version, "total": 1.5}) for one in CARRIERS]
        flights.commit(version, rows)
    sessions = Planted(client, gen="f" * 32, name="sessions")
    sessions.register()
    for version in range(1, 10):
        new = [({"carrier": f"{version} {n}"}, {"count": n, "total": 0.5}) for n in range(200)]
        sessions.commit(version, new)
    for planted, seen_ms, written_ms in (
        (flights, now_ms - 12_000, now_ms - 17_000),
        (sessions, now_ms - 3 * 3_600_000, now_ms - 3 * 3_600_000),
    ):
        for number in range(planted.partitions):
            client.hset(keys.meta(planted.id(number)), "t", str(written_ms))
        started = str(now_ms - 5 * 3_600_000)
        run = "2f6c7e51-8a0b-4a2f-9a39-222222222222"
        fields = {"epoch": started, "seen": str(seen_ms), f"run:{run}": f"{started} d"}
        client.hset(keys.query(planted.gen), mapping=fields)  # type: ignore[arg-type]  # its stub
        entry = {"path": planted.gen, "id": QUERY_ID, "name": planted.name, "created": int(started)}
        client.hset(keys.checkpoints(), planted.gen, json.dumps({**entry, "seen": int(started)}))
    for number in range(2):
        owner = Instance(f"worker-{number + 1}", "3", "run").encode()
        client.set(keys.instance(flights.id(number)), owner)
        report = {"host": f"worker-{number + 1}", "executor": "3", "run": "run", "recent": RECENT}
        client.hset(keys.totals(flights.gen), f"0:{number}:default", json.dumps(report))


@contextmanager
def environment(server: RedisServer, folder: Path) -> Iterator[None]:
    before = dict(os.environ), Path.cwd()
    os.environ.update(REDIS_STATE_URL=server.url, COLUMNS="80", TERM="dumb")
    os.environ.pop("REDIS_STATE_PROFILE", None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        os.chdir(before[1])


def printed(command: str) -> str:
    """Returns the output of a command on a terminal, without blanks at the ends of lines."""
    words = shlex.split(command)
    assert words[0] == "redis-state"
    with redirect_stdout(Terminal()) as out:
        status = main(words[1:])
    assert status == STATUSES.get(command.removeprefix("redis-state "), 0)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "--json" in words or max(map(len, lines), default=0) <= 80
    return "".join(f"{line}\n" for line in lines)


def steady(text: str) -> str:
    """Removes what differs from run to run: times, and sizes, which depend on zstd."""
    text = re.sub(r'("\w*(?:_ms|bytes)": )\d+', r"\g<1>0", text)
    return re.sub(r"[\d.]+ (B|kB|s|MB)\b|\d+ bytes", "N", text).replace("  ", " ")


def rewritten(page: str) -> str:
    """The page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        commands = [line[2:] for line in found[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"$ {one}\n{printed(one)}" for one in commands) + "```"

    return BLOCK.sub(block, page)


def test_the_page_shows_what_the_commands_print(redis_server: RedisServer, tmp_path: Path) -> None:
    plant(redis_server)
    page = PAGE.read_text("utf-8")
    with environment(redis_server, tmp_path):
        now = rewritten(page)
    assert re.sub(" +", " ", steady(now)) == re.sub(" +", " ", steady(page)), (
        "run `python -m tests.contract.test_commands_page`"
    )
    assert (tmp_path / "flights.parquet").is_file()


def test_the_page_names_every_command_and_every_cause() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in commands_of(build_parser()) if f"`{name}`" not in page] == []
    slow, _, causes = page.partition("\n## why-growing\n")
    assert re.findall(r"^- `([a-z-]+)`: ", causes, re.MULTILINE) == [str(one) for one in CauseKind]
    slow = slow.partition("\n## why-slow\n")[2]
    assert re.findall(r"^- `([a-z-]+)`: ", slow, re.MULTILINE) == [
        str(one) for one in SlowCauseKind
    ]


def test_readme_example_equals_the_page() -> None:
    shown = re.search(
        r"^```console\n(\$ redis-state history .*?)^```",
        README.read_text("utf-8"),
        re.DOTALL | re.M,
    )
    assert shown is not None
    assert shown[1] in PAGE.read_text("utf-8")


def write_page() -> None:
    from tempfile import TemporaryDirectory

    with RedisServer() as server, TemporaryDirectory() as folder:
        plant(server)
        with environment(server, Path(folder)):
            text = rewritten(PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    write_page()
