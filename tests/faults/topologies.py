"""`python -m tests.faults.topologies`: each fault of servers and the ways to them, many times."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.bench.page import replace_section

COMMAND = "python -m tests.faults.topologies"
ROOT = Path(__file__).resolve().parent.parent.parent
_TIMES_MAX = 1_000
_ROUND_LIMIT_S = 1_800
_PASSED, _FAILED = "passed", "failed"

Faults = Mapping[str, Sequence[str]]
"""Test functions by the fault that they make."""

_CLUSTER = "tests/topologies/test_cluster.py"
_TLS = "tests/topologies/test_tls.py"
_REPLIES = "tests/topologies/test_replies.py"
_LOADING = "tests/topologies/test_loading.py"
_DURABILITY = "tests/contract/test_durability.py"
_DISK = "tests/contract/test_disk_full.py"
_EVICTION = "tests/contract/test_eviction.py"
_CLOCK = "tests/contract/test_clock_jumps.py"
_QUERIES = "tests/spark/test_topologies.py"
_ERRORS = "tests/spark/test_server_errors.py"

STORES: Faults = {
    "Sentinel fail-over": (
        "tests/topologies/test_sentinel.py::test_fail_over_is_followed_within_one_call",
        "tests/topologies/test_sentinel.py::test_demoted_master_is_abandoned",
    ),
    "Sentinel fail-over, TLS": (f"{_TLS}::test_sentinel_fail_over_is_followed_over_tls",),
    "a sentinel that is down": (
        "tests/topologies/test_sentinel.py::test_stopped_sentinel_is_skipped",
    ),
    "fail-over of a master of a cluster": (
        f"{_CLUSTER}::test_master_fail_over_is_followed_within_one_call",
    ),
    "slots that move: ASK, MOVED, TRYAGAIN": (
        f"{_CLUSTER}::test_ask_and_moved_are_followed_without_waiting",
        f"{_CLUSTER}::test_tryagain_is_retried_until_the_slot_has_moved",
    ),
    "slots that move, TLS": (f"{_TLS}::test_moving_slots_are_followed_over_tls",),
    "a slot half moved past the deadline": (
        f"{_CLUSTER}::test_half_migrated_slot_is_named_at_the_deadline",
    ),
    "master killed after a commit, replicas:1": (
        f"{_DURABILITY}::test_acknowledged_commit_survives_its_server",
    ),
    "master cut off from its sentinels and replicas": (
        f"{_DURABILITY}::test_isolated_master_is_abandoned",
    ),
    "a replica that stands still": (f"{_DURABILITY}::test_hanging_replica_raises_not_durable",),
    "LOADING": (
        f"{_LOADING}::test_commit_waits_for_a_loading_server",
        f"{_LOADING}::test_new_process_waits_for_a_loading_server_and_never_starts_empty",
        f"{_LOADING}::test_loading_server_is_named_at_the_deadline",
    ),
    "READONLY": (f"{_REPLIES}::test_readonly_is_retried_until_the_replica_is_promoted",),
    "NOREPLICAS": (f"{_REPLIES}::test_noreplicas_is_retried",),
    "BUSY": (f"{_REPLIES}::test_busy_is_retried",),
    "CLUSTERDOWN": (f"{_REPLIES}::test_clusterdown_is_retried",),
    "NOSCRIPT": (f"{_REPLIES}::test_noscript_sends_the_script_again",),
    "OOM": (f"{_REPLIES}::test_oom_fails_at_once",),
    "MISCONF": (f"{_REPLIES}::test_misconf_fails_at_once",),
    "disk full": (
        f"{_DISK}::test_full_disk_of_the_append_only_file_raises_full_and_recovers",
        f"{_DISK}::test_full_disk_of_the_snapshot_file_raises_full_and_recovers",
        f"{_DISK}::test_server_exit_under_appendfsync_always_retries_the_commit",
    ),
    "eviction, each policy": (
        f"{_EVICTION}::test_volatile_eviction_keeps_all_state",
        f"{_EVICTION}::test_evicted_state_raises_state_lost",
        f"{_EVICTION}::test_next_run_on_an_evicting_server_is_refused",
    ),
    "the server's clock jumps": (
        f"{_CLOCK}::test_clock_jump_keeps_published_state_and_the_job_running",
        f"{_CLOCK}::test_open_reader_survives_a_clock_jump_after_a_drop",
        f"{_CLOCK}::test_staged_rows_that_expired_are_staged_again",
    ),
}
"""What the store itself does about each fault."""

QUERIES: Faults = {
    "query, Sentinel fail-over": (f"{_QUERIES}::test_query_continues_after_a_sentinel_fail_over",),
    "query, Sentinel fail-over, TLS": (
        f"{_QUERIES}::test_tls_query_continues_after_a_sentinel_fail_over",
    ),
    "query, master killed, replicas:1": (
        f"{_QUERIES}::test_replicated_commit_survives_the_master",
    ),
    "query, fail-over of a master of a cluster": (
        f"{_QUERIES}::test_query_continues_after_a_cluster_master_fails",
    ),
    "query, slots that move": (
        f"{_QUERIES}::test_query_on_a_cluster_with_moving_slots_is_read_and_purged",
    ),
    "query, slots that move, TLS": (f"{_QUERIES}::test_tls_query_continues_while_slots_move",),
    "query, out of memory": (f"{_ERRORS}::test_out_of_memory_fails_the_batch_and_loses_nothing",),
    "query, disk full": (f"{_ERRORS}::test_a_full_disk_fails_the_batch_and_loses_nothing",),
    "query, eviction": (f"{_ERRORS}::test_evicted_state_of_a_query_raises_state_lost",),
}
"""What whole queries of Spark do."""


def play(faults: Faults) -> tuple[Counter[tuple[str, str]], str]:
    """One round: how many tests of each fault passed and failed, and what pytest said."""
    ids = [name for names in faults.values() for name in names]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}", *ids]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_ROUND_LIMIT_S, check=False
        )
        if not report.exists():
            raise SystemExit(f"pytest did not run:\n{done.stdout}{done.stderr}")
        met = outcomes(report.read_text())
    found: Counter[tuple[str, str]] = Counter()
    for fault, names in faults.items():
        for name in names:
            for outcome in met.get(name, [_FAILED]):
                found[fault, outcome] += 1
    return found, done.stdout


def outcomes(report: str) -> dict[str, list[str]]:
    """Outcomes of each test function's cases, from pytest's JUnit report.

    What was skipped, or ended in an error of its fixtures, has failed.
    """
    found: dict[str, list[str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        name = case.attrib["name"].split("[")[0]
        ended = _FAILED if len(case) and case[0].tag != "system-out" else _PASSED
        found.setdefault(f"{file}::{name}", []).append(ended)
    return found


def table(faults: Faults, found: Counter[tuple[str, str]], rounds: int, minutes: float) -> str:
    """The result, as it stands on a page."""
    today = datetime.now(timezone.utc).date()
    rows = [
        f"| {fault} | {rounds} | {found[fault, _PASSED] + found[fault, _FAILED]} "
        f"| {found[fault, _FAILED]} |"
        for fault in faults
    ]
    return "\n".join(
        [
            f"{today}: {rounds} rounds in {minutes:.0f} minutes.",
            "",
            "| fault | times | tests run | failed |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def main(words: list[str] | None = None) -> int:
    """Play the rounds that the arguments ask for; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--times", type=int, default=10, metavar="N", help="rounds (default 10)")
    parser.add_argument("--queries", action="store_true", help="the faults amid queries of Spark")
    parser.add_argument("--write", metavar="PAGE", help="put the table on this page")
    asked = parser.parse_args(words)
    if not 0 < asked.times <= _TIMES_MAX:
        parser.error(f"--times is 1 to {_TIMES_MAX}")
    faults = QUERIES if asked.queries else STORES
    found: Counter[tuple[str, str]] = Counter()
    begun = time.monotonic()
    columns = ("rounds", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        for number in bar.track(range(1, asked.times + 1)):
            met, said = play(faults)
            found.update(met)
            failed = sum(count for (_, outcome), count in met.items() if outcome == _FAILED)
            bar.console.print(f"round {number}: {sum(met.values())} tests, {failed} failed")
            if failed:
                bar.console.print(said, markup=False, highlight=False)
    text = table(faults, found, asked.times, (time.monotonic() - begun) / 60)
    print(text)
    failed = any(found[fault, _FAILED] for fault in faults)
    if asked.write and not failed:
        page = Path(asked.write)
        command = f"{COMMAND} --queries" if asked.queries else COMMAND
        page.write_text(replace_section(page.read_text(), command, text))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
