"""`redis-state exporter` over a real server: what a scrape gives, and what it says of failures."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from redis_state import config, keys
from redis_state.cli.main import main
from redis_state.cli.operate.metrics_server import HEALTH_PATH
from redis_state.exporter import METRICS, QueryCollector
from redis_state.live import Reader, connect
from redis_state.protocol.instances import Instance, totals_commands
from tests.contract.planting import GEN, Planted
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer
from tests.support.tls import make_certificates
from tests.support.waiting import wait_until

RULES = Path(__file__).resolve().parents[2] / "docker" / "metrics" / "alerts.yml"
PAGE = RULES.parents[2] / "docs" / "metrics.md"
OPERATIONS = RULES.parents[2] / "docs" / "operations.md"
Samples = dict[tuple[str, str], float]


@contextmanager
def exporter(url: str, *more: str) -> Iterator[str]:
    """Runs the exporter and yields the address that it prints."""
    command = [sys.executable, "-m", "redis_state", "exporter", "--url", url, "--port", "0"]
    command += ["--deadline", "1s", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
    finally:
        process.kill()
        process.wait()


def scrape(address: str, context: ssl.SSLContext | None = None) -> Samples:
    """Values by metric and store, or query where it is about no store."""
    with urllib.request.urlopen(address, context=context) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("store") or sample.labels.get("query", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def count(reader: Reader, planted: Planted, executor: str, **counts: int) -> None:
    instance = Instance("host", executor, "run")
    reader.client.call("counting", totals_commands({planted.id(0): (instance, counts)}))


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    found = Planted(redis_server.client(), partitions=2)
    found.register()
    found.commit(1, [({"carrier": f"{n}"}, {"count": n, "total": 0.5}) for n in range(30)])
    return found


def test_scrape_has_query_status_and_counters(redis_server: RedisServer, planted: Planted) -> None:
    with connect(redis_server.url) as reader, exporter(redis_server.url) as address:
        found = scrape(address)
        assert found["redis_state_up", ""] == 1
        assert found["redis_state_rows", "default"] == 30
        assert found["redis_state_partitions", "default"] == 2
        assert found["redis_state_largest_partition_ratio", "default"] >= 1
        assert found["redis_state_newest_batch", "flights"] == 0
        assert found["redis_state_problems", "flights"] == 0
        assert ("redis_state_commits_total", "default") not in found

        def commits_are(total: float) -> None:
            # Between two looks whoever scrapes gets the last one.
            name = ("redis_state_commits_total", "default")
            wait_until(lambda: scrape(address).get(name) == total, f"{total} commits")

        count(reader, planted, "1", commits=3, commitMs=1500)
        commits_are(3)
        assert scrape(address)["redis_state_commit_seconds_total", "default"] == 1.5
        count(reader, planted, "1", commits=5, commitMs=1700)
        commits_are(5)
        # Another one begins anew, and each goes on with its own counts when they take turns.
        count(reader, planted, "2", commits=1, commitMs=10)
        commits_are(6)
        count(reader, planted, "1", commits=7, commitMs=1900)
        commits_are(8)
        # It was loaded anew.
        count(reader, planted, "1", commits=1, commitMs=5)
        commits_are(9)
        redis_server.kill()
        wait_until(lambda: scrape(address) == {("redis_state_up", ""): 0}, "Redis to be missed")


def test_health_path_answers_while_redis_is_down(redis_server: RedisServer) -> None:
    with exporter(redis_server.url) as address:
        redis_server.kill()
        with urllib.request.urlopen(urllib.parse.urljoin(address, HEALTH_PATH)) as answer:
            assert (answer.status, answer.read()) == (200, b"OK\n")


def test_scrape_has_copies_and_failed_tasks(redis_server: RedisServer, planted: Planted) -> None:
    query, totals = keys.query(GEN), keys.totals(GEN)
    planted.client.hincrby(totals, "lost:0:default", 5)
    with exporter(redis_server.url) as address:
        found = scrape(address)
        assert found["redis_state_lost_total", "default"] == 0
        assert ("redis_state_copied_batch", "flights") not in found
        planted.client.hset(query, "copies", "2")
        planted.client.hset(query, "copied", "1 1700000000000")
        planted.client.hincrby(totals, "lost:0:default", 1)
        planted.client.hincrby(totals, "fenced:0:default", 2)
        planted.client.hset(totals, "fenced:zero:default", "no number")
        name = ("redis_state_lost_total", "default")
        wait_until(lambda: scrape(address)[name] == 1, "the task that failed")
        found = scrape(address)
        assert found["redis_state_fenced_total", "default"] == 2
        assert found["redis_state_copy_every_batches", "flights"] == 2
        assert found["redis_state_copied_batch", "flights"] == 0
        assert found["redis_state_copy_timestamp_seconds", "flights"] == 1_700_000_000
        # What was counted expired, and something was counted since then.
        planted.client.delete(totals)
        planted.client.hset(query, "copied", "2 1700000000000")
        copied = ("redis_state_copied_batch", "flights")
        wait_until(lambda: scrape(address)[copied] == 1, "a look after it expired")
        planted.client.hincrby(totals, "lost:0:default", 3)
        wait_until(lambda: scrape(address)[name] == 4, "those that came after it")


def test_scrape_reads_each_counter_once(redis_server: RedisServer, planted: Planted) -> None:
    planted.client.hincrby(keys.totals(GEN), "lost:0:default", 5)
    with connect(redis_server.url) as reader:
        count(reader, planted, "1", commits=3)
        reader.status()
        before = reader.client.round_trips
        reader.status()
        of_status = reader.client.round_trips - before
        families = {metric.name: metric for metric in QueryCollector(reader).collect()}
        assert families["redis_state_commits"].samples[0].value == 3
        assert families["redis_state_lost"].samples[0].value == 0
        assert reader.client.round_trips - before == 2 * of_status + 1


def test_exporter_serves_tls(redis_server: RedisServer, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    files = ("--serve-cert-file", str(made.certificate), "--serve-key-file", str(made.key))
    with exporter(redis_server.url, *files) as address:
        assert address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(made.authority))
        assert scrape(address, context)["redis_state_up", ""] == 1


@pytest.mark.parametrize("tls", [False, True])
def test_silent_clients_block_no_scrape(
    redis_server: RedisServer, tmp_path: Path, tls: bool
) -> None:
    made = make_certificates(tmp_path)
    files = ("--serve-cert-file", str(made.certificate), "--serve-key-file", str(made.key))
    context = ssl.create_default_context(cafile=str(made.authority)) if tls else None
    shown = exporter(redis_server.url, *(files if tls else ()))
    # It ends by a signal while they are still there.
    with ExitStack() as silent, shown as address:
        port = urllib.parse.urlsplit(address).port or 0
        for _ in range(5):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert scrape(address, context)["redis_state_up", ""] == 1


def test_malformed_entry_is_a_problem_and_fails_no_scrape(
    redis_server: RedisServer, planted: Planted
) -> None:
    planted.client.hset(keys.meta(planted.id(0)), "t", "9" * 400)
    with exporter(redis_server.url) as address:
        found = scrape(address)
        assert found["redis_state_up", ""] == 1
        assert found["redis_state_problems", "flights"] == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--port", "70000"], "--port is not a port number"),
        (["--serve-cert-file", "cert.pem"], "one of --serve-cert-file and --serve-key-file"),
        (["--listen", "203.0.113.1"], "Give another --port or --listen"),
    ],
)
def test_wrong_arguments_are_named(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], wrong: list[str], said: str
) -> None:
    assert main(["exporter", "--url", redis_server.url, *wrong]) == 1
    assert said in capsys.readouterr().err


def test_the_page_lists_every_metric() -> None:
    listed = set(re.findall(r"`(redis_state_\w+)`", PAGE.read_text("utf-8")))
    assert listed == {*METRICS, "redis_state_up"}


def test_alert_rules_name_existing_metrics_and_pages() -> None:
    headings = re.findall(r"^#+ (.+)$", OPERATIONS.read_text("utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}
    rules = [
        rule
        for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert rules
    for rule in rules:
        assert set(re.findall(r"redis_state_\w+", rule["expr"])) <= {*METRICS, "redis_state_up"}, (
            rule["alert"]
        )
        assert rule["annotations"]["runbook_url"].partition("#")[2] in anchors, rule["alert"]
        assert rule["annotations"]["summary"]


@pytest.mark.usefixtures("planted")
def test_recovery_after_a_long_outage_is_seen_soon(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with Reader(config.parse({"url": redis_server.url, "deadline": "60s"}), clock=clock) as reader:
        collector = QueryCollector(reader, clock=clock)

        def up() -> float:
            return float(next(iter(collector.collect())).samples[0].value)

        assert up() == 1
        redis_server.kill()
        clock.sleep_s(60)
        assert up() == 0
        assert clock.now_s >= 120
        redis_server.restart()
        clock.sleep_s(61)
        assert up() == 1
