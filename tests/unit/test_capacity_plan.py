"""`redis-state plan`, its page, and what the formulas have to give."""

from __future__ import annotations

import io
import json
import re
import shlex
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from redis_state.cli.main import main
from redis_state.status.capacity import Workload, allocated, plan, proposals

PAGE = Path(__file__).resolve().parents[2] / "docs" / "capacity.md"
BLOCK = re.compile(r"^```console\n\$ redis-state (.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WORK = Workload(1_000_000, 56, 50_000, 6, compression=0.25, partitions=4)
GIVEN = (
    "plan --rows 1000000 --row-bytes 56 --updates-per-batch 50000 --batches-per-minute 6 "
    "--partitions 4 --compression 0.25"
)


def printed(command: str) -> str:
    with redirect_stdout(io.StringIO()) as out:
        assert main(shlex.split(command)) == 0
    return out.getvalue()


def test_page_shows_what_the_command_prints() -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert blocks
    for command, output in blocks:
        assert output == printed(command)


def test_json_has_every_member_and_the_proposals() -> None:
    (line,) = printed(f"{GIVEN} --json").splitlines()
    found = json.loads(line)
    planned = plan(WORK)
    assert found["workload"]["updates"] == 50_000
    assert found["memory_bytes"] == pytest.approx(planned.memory_bytes, rel=1e-5)
    assert found["delta"]["blocks"] == planned.delta.blocks
    assert found["proposals"] == list(proposals(WORK, planned))


def test_options_of_the_page_are_those_of_the_command() -> None:
    on_page = set(re.findall(r"`(--[a-z-]+)`", PAGE.read_text().split("## The formulas")[0]))
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["plan", "--help"])
    options = set(re.findall(r"^  (--[a-z-]+)", out.getvalue(), re.MULTILINE))
    assert on_page == options
    for default in re.findall(r"\(default:\s+([0-9.]+)\)", out.getvalue()):
        assert re.search(rf"\| ([0-9.]+, )?{default}(, [0-9.]+)? \|", PAGE.read_text())


@pytest.mark.parametrize(
    "wrong",
    ["--rows -1", "--rows 1e6", "--row-bytes 0", "--updates-per-batch nan", "--partitions 0"],
)
def test_number_out_of_range_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(GIVEN), *wrong.split()])
    assert ended.value.code == 2
    assert "is not" in capsys.readouterr().err


def test_more_of_anything_needs_no_less() -> None:
    base = plan(WORK)
    for more in (
        {"rows": 2_000_000},
        {"row_bytes": 112},
        {"updates": 100_000},
        {"batches_per_minute": 12},
        {"versions_to_retain": 200},
        {"compression": 0.5},
    ):
        found = plan(replace(WORK, **more))
        assert found.memory_bytes > base.memory_bytes, more
        assert found.network_in_bytes_s >= base.network_in_bytes_s * 0.99, more
        assert found.server_cores >= base.server_cores * 0.99, more


def test_state_without_rows_or_changes_has_a_plan() -> None:
    for work in (replace(WORK, rows=0, updates=0), replace(WORK, rows=0), replace(WORK, updates=0)):
        found = plan(work)
        assert 0 < found.memory_bytes < plan(WORK).memory_bytes
        assert found.connections == plan(WORK).connections


def test_rare_changes_are_spread_over_the_stores() -> None:
    rare = plan(replace(WORK, updates=1, partitions=100))
    often = plan(replace(WORK, updates=100, partitions=100))
    assert rare.delta.blocks == pytest.approx(0.01, rel=0.1)
    assert often.delta.blocks > 50 * rare.delta.blocks


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"partitions": 4_096, "batches_per_minute": 120, "rows": 10_000}, "cluster"),
        ({"partitions": 4_096, "batches_per_minute": 60, "rows": 10_000}, "fewer partitions"),
        ({"rows": 2_000_000_000, "executors": 4}, "executors with"),
        ({"batches_per_minute": 60, "versions_to_retain": 2}, "fewer batches"),
        ({"updates": 500_000, "batches_per_minute": 0.1}, "versionsToRetain=10"),
    ],
)
def test_proposal_names_what_to_change(change: dict[str, float], word: str) -> None:
    assert not any(word in one for one in proposals(WORK, plan(WORK)))
    work = replace(WORK, **change)  # type: ignore[arg-type]  # each member gets its own type
    assert any(word in one for one in proposals(work, plan(work)))


def test_allocator_rounds_up_to_four_classes_a_doubling() -> None:
    for length in (1, 64, 65, 1_000, 20_000):
        assert length <= allocated(length) <= max(16, length * 1.26)


def test_rows_in_key_order_have_a_header_in_each_delta() -> None:
    hashed, ordered = plan(WORK), plan(replace(WORK, ordered=True))
    assert ordered.delta.blocks == hashed.delta.blocks + 1
    assert ordered.snapshot == hashed.snapshot
