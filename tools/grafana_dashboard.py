"""Writes docker/metrics/grafana/dashboard.json: `python tools/grafana_dashboard.py > FILE`.

The panels are a table here, because the file repeats itself for each of them. It has Grafana's
dashboard schema 39, which Grafana 9.4 also shows. `tests/contract/test_metrics_stack.py` compares
the file with this program, and runs its expressions on a real Prometheus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_OF = '{query=~"$query"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24
_SPAN = "5m"
"""Processes publish their counters every 20 seconds; a rate over one minute would show waves."""

_COUNT = "count"
_WANTED = " wanted"
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A panel over time.

    Attributes:
        queries: PromQL expressions with the legends of their lines.
        unit: Grafana's name of the unit; `_COUNT` for whole numbers.
        low: Lower end of the axis.
        high: Least upper end of the axis. With zeros alone, Grafana's axis goes up to 100.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    meaning: str = ""
    low: float = 0
    high: float | None = None


# Series that are not summed come in the order of checkpoint ids. Grouped by name, a query has the
# same colour in all panels.
def _of_query(expression: str) -> str:
    return f"max by (query) ({expression})"


def _of_store(expression: str) -> str:
    return f"max by (query, operator, store) ({expression})"


def _mean(seconds: str, times: str) -> str:
    return f"{_rate(seconds)} / ({_rate(times)} > 0)"


def _rate(name: str) -> str:
    return f"sum by (query, operator, store) (rate({name}{_OF}[{_SPAN}]))"


def _hourly(name: str) -> str:
    return f"sum by (query, operator, store) (increase({name}{_OF}[1h]))"


_STORE = "{{query}} {{operator}} {{store}}"
PANELS = (
    Panel(
        "Queries that run",
        _COUNT,
        (
            (f"sum(redis_state_query_alive{_OF})", "alive"),
            (f"count(redis_state_query_alive{_OF})", "all"),
        ),
        high=1,
    ),
    Panel("Problems", _COUNT, ((_of_query(f"redis_state_problems{_OF}"), "{{query}}"),), high=1),
    Panel("The exporter reaches Redis", "bool", (("redis_state_up", "{{instance}}"),)),
    Panel(
        "Time since the last write",
        "s",
        ((f"time() - {_of_query(f'redis_state_last_write_timestamp_seconds{_OF}')}", "{{query}}"),),
        "Noted once a minute, so a query that runs goes up to a minute and some seconds.",
    ),
    Panel(
        "Lag",
        _COUNT,
        (
            (
                _of_query(f"redis_state_newest_batch{_OF} - redis_state_confirmed_batch{_OF}"),
                "{{query}}",
            ),
        ),
        "Batches that are published and not confirmed by every partition.",
        high=1,
    ),
    Panel(
        "Batches a minute",
        "short",
        ((_of_query(f"60 * deriv(redis_state_confirmed_batch{_OF}[{_SPAN}])"), "{{query}}"),),
    ),
    Panel("Rows", "short", ((f"sum by (query) (redis_state_rows{_OF})", "{{query}}"),)),
    Panel("Bytes in Redis", "bytes", ((f"sum by (query) (redis_state_bytes{_OF})", "{{query}}"),)),
    Panel(
        "Of the limit",
        "percentunit",
        ((_of_query(f"redis_state_limit_ratio{_OF}"), "{{query}}"),),
        "At 100 % the query stops with QUOTA.",
        high=1,
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
    Panel("Rows put a second", "short", ((_rate("redis_state_rows_written_total"), _STORE),)),
    Panel("Rows removed a second", "short", ((_rate("redis_state_rows_removed_total"), _STORE),)),
    Panel("Bytes sent a second", "Bps", ((_rate("redis_state_sent_bytes_total"), _STORE),)),
    Panel(
        "Tasks in an hour that were fenced off",
        _COUNT,
        ((_hourly("redis_state_fenced_total"), _STORE),),
        high=1,
    ),
    Panel(
        "Tasks in an hour that found state lost",
        _COUNT,
        ((_hourly("redis_state_lost_total"), _STORE),),
        high=1,
    ),
    Panel(
        "Batches since the newest copy",
        _COUNT,
        (
            (
                _of_query(f"redis_state_confirmed_batch{_OF} - redis_state_copied_batch{_OF}"),
                "{{query}}",
            ),
        ),
        high=1,
    ),
    Panel(
        "Largest partition over the mean",
        "short",
        ((_of_store(f"redis_state_largest_partition_ratio{_OF}"), _STORE),),
        low=1,
        high=2,
    ),
    Panel(
        "Kept versions",
        _COUNT,
        (
            (_of_store(f"redis_state_kept_versions{_OF}"), f"{_STORE} kept"),
            (_of_store(f"redis_state_wanted_versions{_OF}"), _STORE + _WANTED),
        ),
        high=1,
    ),
    Panel(
        "Partitions without an owner",
        _COUNT,
        ((_of_store(f"redis_state_partitions{_OF} - redis_state_served_partitions{_OF}"), _STORE),),
        high=1,
    ),
    Panel(
        "Bytes in files",
        "bytes",
        (
            (f"sum by (query) (redis_state_file_bytes{_OF})", "{{query}}"),
            (
                'sum by (query) (redis_state_files_bytes{query=~"$query", state="condemned"})',
                "{{query}} condemned",
            ),
        ),
        "Of history=files. Condemned files are not needed any more.",
    ),
    Panel(
        "History in Redis",
        "bytes",
        ((f"sum by (query) (redis_state_history_bytes{_OF})", "{{query}}"),),
        "Older than the newest snapshot; with history=files it waits for a file.",
    ),
    Panel(
        "Used part of the fullest share",
        "percentunit",
        ((_of_store(f"redis_state_share_ratio{_OF}"), _STORE),),
        "Of redisMemory. Maintenance keeps a sixth free.",
        high=1,
    ),
    Panel(
        "Waits for room in an hour",
        _COUNT,
        ((_hourly("redis_state_room_waits_total"), _STORE),),
        "Of commits, until segments had left a full share of redisMemory.",
        high=1,
    ),
    Panel(
        "Moves into files in an hour that failed",
        _COUNT,
        ((_hourly("redis_state_failed_moves_total"), _STORE),),
        high=1,
    ),
)


def dashboard() -> dict[str, Any]:
    """Returns the whole dashboard."""
    return {
        "uid": "redis-state",
        "title": "redis-state",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {"text": "default", "value": "default"},
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
        "fieldConfig": {"defaults": _field(one), "overrides": _overrides(one)},
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


def _field(one: Panel) -> dict[str, Any]:
    unit = {"unit": "short", "decimals": 0} if one.unit == _COUNT else {"unit": one.unit}
    drawn = {} if one.high is None else {"custom": {"axisSoftMax": one.high}}
    return {**unit, "min": one.low, **drawn}


def _overrides(one: Panel) -> list[dict[str, Any]]:
    """Draws wanted values as a dashed line, without a legend."""
    if not any(legend.endswith(_WANTED) for _, legend in one.queries):
        return []
    properties = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}},
    ]
    return [{"matcher": {"id": "byRegexp", "options": f"/{_WANTED}$/"}, "properties": properties}]


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
