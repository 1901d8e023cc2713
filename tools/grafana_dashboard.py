"""Writes docker/metrics/grafana/dashboard.json: `python tools/grafana_dashboard.py > FILE`.

The panels are a table here, since the file repeats itself for each of them. It is of Grafana's
dashboard schema 39, which Grafana 11 and newer read. `tests/contract/test_metrics_stack.py` holds
the file against this program and its expressions against a real Prometheus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_OF = '{query=~"$query"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A panel over time.

    Attributes:
        queries: PromQL expressions with the legends of their lines.
        unit: By Grafana's name.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    meaning: str = ""


def _mean(seconds: str, times: str) -> str:
    return f"{_rate(seconds)} / {_rate(times)}"


def _rate(name: str) -> str:
    return f"sum by (query, operator, store) (rate({name}{_OF}[$__rate_interval]))"


def _hourly(name: str) -> str:
    return f"sum by (query, operator, store) (increase({name}{_OF}[1h]))"


_STORE = "{{query}} {{operator}} {{store}}"
PANELS = (
    Panel(
        "Queries that run",
        "short",
        (
            (f"sum(redis_state_query_alive{_OF})", "alive"),
            (f"count(redis_state_query_alive{_OF})", "all"),
        ),
    ),
    Panel("Problems", "short", ((f"redis_state_problems{_OF}", "{{query}}"),)),
    Panel("The exporter reaches Redis", "bool", (("redis_state_up", "{{instance}}"),)),
    Panel(
        "Time since the last write",
        "s",
        ((f"time() - redis_state_last_write_timestamp_seconds{_OF}", "{{query}}"),),
        "Noted once a minute.",
    ),
    Panel(
        "Lag",
        "short",
        ((f"redis_state_newest_batch{_OF} - redis_state_confirmed_batch{_OF}", "{{query}}"),),
        "Batches that are published and not confirmed by every partition.",
    ),
    Panel(
        "Batches a minute",
        "short",
        ((f"60 * deriv(redis_state_confirmed_batch{_OF}[5m])", "{{query}}"),),
    ),
    Panel("Rows", "short", ((f"sum by (query) (redis_state_rows{_OF})", "{{query}}"),)),
    Panel("Bytes in Redis", "bytes", ((f"sum by (query) (redis_state_bytes{_OF})", "{{query}}"),)),
    Panel(
        "Of the limit",
        "percentunit",
        ((f"redis_state_limit_ratio{_OF}", "{{query}}"),),
        "At 100 % the query stops with QUOTA.",
    ),
    Panel(
        "Mean time of a commit",
        "s",
        (
            (
                _mean("redis_state_commit_seconds_total", "redis_state_commits_total"),
                _STORE,
            ),
        ),
    ),
    Panel(
        "Mean time to open a version",
        "s",
        (
            (
                _mean("redis_state_open_seconds_total", "redis_state_opens_total"),
                _STORE,
            ),
        ),
    ),
    Panel(
        "Mean time to load a version",
        "s",
        (
            (
                _mean("redis_state_load_seconds_total", "redis_state_loads_total"),
                _STORE,
            ),
        ),
        "Of versions that were not in local memory.",
    ),
    Panel(
        "Rows changed a second",
        "short",
        (
            (_rate("redis_state_rows_written_total"), f"{_STORE} put"),
            (_rate("redis_state_rows_removed_total"), f"{_STORE} removed"),
        ),
    ),
    Panel(
        "Tasks that failed, in an hour",
        "short",
        (
            (_hourly("redis_state_fenced_total"), f"{_STORE} fenced"),
            (_hourly("redis_state_lost_total"), f"{_STORE} state lost"),
        ),
    ),
    Panel(
        "Batches since the newest copy",
        "short",
        ((f"redis_state_confirmed_batch{_OF} - redis_state_copied_batch{_OF}", "{{query}}"),),
    ),
    Panel("Bytes sent a second", "Bps", ((_rate("redis_state_sent_bytes_total"), _STORE),)),
    Panel(
        "Largest partition over the mean",
        "short",
        ((f"redis_state_largest_partition_ratio{_OF}", _STORE),),
    ),
    Panel(
        "Kept versions",
        "short",
        (
            (f"redis_state_kept_versions{_OF}", f"{_STORE} kept"),
            (f"redis_state_wanted_versions{_OF}", f"{_STORE} wanted"),
        ),
    ),
    Panel(
        "Partitions without an owner",
        "short",
        ((f"redis_state_partitions{_OF} - redis_state_served_partitions{_OF}", _STORE),),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole file."""
    return {
        "uid": "redis-state",
        "title": "redis-state",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "query",
                    "label": "Query",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(redis_state_query_alive, query)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(number, one) for number, one in enumerate(PANELS)],
    }


def _panel(number: int, one: Panel) -> dict[str, Any]:
    per_row = _COLUMNS // _WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "description": one.meaning,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % per_row * _WIDTH,
            "y": number // per_row * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for at, (expression, legend) in enumerate(one.queries)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
