"""`docker/metrics`: the dashboard, the rules and the services, against a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from redis_state import config, connect, keys
from redis_state.exporter import METRICS
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol.instances import Instance, totals_commands
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted
from tests.contract.test_exporter import exporter
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import await_end, wait_until
from tools.grafana_dashboard import PANELS, dashboard

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "metrics"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
_STOP_S = 10
_WHEELS = "../../dist"
"""Folder with the wheel of the checkout, which `make wheel` fills."""
Found = list[dict[str, Any]]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    """PromQL expressions of the panels, as Grafana sends them, and of the rules."""
    shown = [expression for panel in PANELS for expression, _ in panel.queries]
    filled = [one.replace("$query", ".*").replace("[5m]", "[20s]") for one in shown]
    return filled + [rule["expr"] for rule in rules()]


def test_dashboard_file_is_current() -> None:
    written = json.loads((FOLDER / "grafana" / "dashboard.json").read_text("utf-8"))
    assert written == dashboard(), "run `python tools/grafana_dashboard.py`"
    places = [tuple(panel["gridPos"].values())[:2] for panel in written["panels"]]
    assert len(set(places)) == len(places) == len({one["id"] for one in written["panels"]})


def test_every_expression_names_existing_metrics() -> None:
    for expression in expressions():
        named = set(re.findall(r"redis_state_\w+", expression))
        assert named, expression
        assert named <= {*METRICS, "redis_state_up"}, expression


def test_services_name_existing_files_and_services() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    services = compose["services"]
    for name, service in services.items():
        assert service["image"], name
        assert set(service.get("depends_on", [])) <= set(services), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            known = source in compose["volumes"] or source == _WHEELS
            assert known or (FOLDER / source).is_file(), volume
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert f"--port {port}" in " ".join(services[host]["command"])
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yml").read_text("utf-8"))[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus with our rules that scrapes each second."""
    if PROMETHEUS is None:
        pytest.skip("no prometheus on PATH (Debian and Ubuntu: apt-get install prometheus)")
    given = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    for name in ("scrape_interval", "scrape_timeout", "evaluation_interval"):
        given["global"][name] = "1s"
    given["rule_files"] = [str(FOLDER / "alerts.yml")]
    given["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(given), "utf-8")
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=error",
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await_end(process, _STOP_S)


def asked(address: str, path: str, **given: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(given)}"
    with urllib.request.urlopen(url) as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return found["data"]


def is_up(address: str) -> bool:
    try:
        return bool(asked(address, "query", query="redis_state_up == 1")["result"])
    except OSError:
        return False


@pytest.mark.long
def test_every_expression_is_answered_by_a_real_prometheus(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    id_ = StateStoreProviderId(StateStoreId("job", 0, 0), "run")
    given = config.parse({"url": redis_server.url, "state_bytes_max": "1g"})
    provider = StateStoreProvider(id_, config=given)
    client = redis_server.client()
    planted = Planted(client)
    planted.register()
    with connect(redis_server.url) as reader, exporter(redis_server.url) as shown:
        target = urllib.parse.urlsplit(shown).netloc
        with prometheus(tmp_path, target) as address:
            wait_until(lambda: is_up(address), "Prometheus to have scraped")
            version = 0

            def batch() -> None:
                nonlocal version
                # Of the JVM, whose versions are batches, and of Python.
                planted.commit(version + 1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
                store = provider.get_store(version)
                store.put(version, "x")
                version = store.commit()
                (info,) = (one for one in reader.queries() if one.name == "job")
                partition = id_.store_id.partition(info.gen)
                # As the heartbeat of an executor shows it.
                counts = {**provider.counters.totals(), "loads": version, "loadMs": version}
                told = totals_commands({partition: (Instance("host", "1", "run"), counts)})
                reader.client.call("counting", told)
                # As a driver tells of a copy.
                client.hset(keys.query(GEN), "copied", f"1 {int(time.time() * 1000)}")

            missing = expressions()[: sum(len(panel.queries) for panel in PANELS)]

            def all_answered() -> bool:
                batch()
                missing[:] = [
                    one for one in missing if not asked(address, "query", query=one)["result"]
                ]
                return not missing

            try:
                wait_until(all_answered, f"answers to {missing}")
            except TimeoutError:
                pytest.fail(f"no answer to {missing}")
            for expression in expressions():
                asked(address, "query", query=expression)
            (group,) = asked(address, "rules")["groups"]
            assert {one["name"] for one in group["rules"]} == {one["alert"] for one in rules()}
            assert {one["health"] for one in group["rules"]} == {"ok"}
    provider.close()


@pytest.mark.long
def test_stopped_exporter_raises_an_alert(tmp_path: Path) -> None:
    with prometheus(tmp_path, f"127.0.0.1:{free_port()}") as address:

        def pending() -> set[str]:
            try:
                (group,) = asked(address, "rules")["groups"]
            except OSError:
                return set()
            return {one["name"] for one in group["rules"] if one["state"] == "pending"}

        wait_until(lambda: "RedisStateUnreachable" in pending(), "the alert to be pending")
        assert pending() == {"RedisStateUnreachable"}


@pytest.mark.long
def test_late_or_missing_copies_raise_an_alert(tmp_path: Path) -> None:
    if PROMTOOL is None:
        pytest.skip("no promtool on PATH; it comes with Debian's and Ubuntu's prometheus")
    every, confirmed, copied = (
        f"redis_state_{name}" for name in ("copy_every_batches", "confirmed_batch", "copied_batch")
    )
    given = {
        "never": {every: "5x60", confirmed: "0+1x60"},
        "late": {every: "5x60", confirmed: "0+1x60", copied: "0x60"},
        "fine": {every: "5x60", confirmed: "0+1x60", copied: "0+1x60"},
        "off": {confirmed: "0+1x60"},
    }
    (rule,) = (one for one in rules() if one["alert"] == "RedisStateCopyLate")
    told = {
        name: {
            key: text.replace("{{ $labels.query }}", name)
            for key, text in rule["annotations"].items()
        }
        for name in ("never", "late")
    }
    test = {
        "interval": "1m",
        "input_series": [
            {"series": f'{metric}{{query="{name}"}}', "values": values}
            for name, series in given.items()
            for metric, values in series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "40m",
                "alertname": rule["alert"],
                "exp_alerts": [
                    {"exp_labels": {"query": name, **rule["labels"]}, "exp_annotations": of_query}
                    for name, of_query in told.items()
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [test]}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
