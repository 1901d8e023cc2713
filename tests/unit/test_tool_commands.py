"""Programs that tools run to their end, and folders that they make once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.commands import output_of
from tools.servers import made_once


class ToolError(Exception):
    """The error that a tool raises."""


def test_output_is_returned_and_variables_are_set() -> None:
    code = (
        "import os, sys; print(os.environ['GIVEN'], sys.stdin.read()); print('e', file=sys.stderr)"
    )
    found = output_of([sys.executable, "-c", code], ToolError, variables={"GIVEN": "value"})
    assert found == "value \n"


@pytest.mark.parametrize(
    ("command", "limit_s", "message"),
    [
        (["/no/such/program", "-x"], 60, "there is no program /no/such/program"),
        (
            [sys.executable, "-c", "import sys; print('begun'); sys.exit('no disk')"],
            60,
            f"`{sys.executable} -c import sys; print('begun'); sys.exit('no disk') …` "
            "failed with 1:\nbegun\nno disk",
        ),
        (
            [sys.executable, "-c", "import time; time.sleep(60)"],
            0.2,
            f"`{sys.executable} -c import time; time.sleep(60) …` did not end within 0.2 s",
        ),
    ],
)
def test_failure_raises_the_error_of_the_tool(
    command: list[str], limit_s: float, message: str
) -> None:
    with pytest.raises(ToolError) as caught:
        output_of(command, ToolError, limit_s=limit_s)
    assert str(caught.value) == message


def test_folder_of_the_cache_is_made_as_a_whole(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def failing(folder: Path, scratch: Path) -> None:
        (folder / "half").touch()
        (scratch / "apt").mkdir()
        raise ToolError

    with pytest.raises(ToolError):
        made_once(cache / "python", failing)
    assert list(cache.iterdir()) == []
    made_once(cache / "python", lambda folder, _: (folder / "whole").touch())
    assert made_once(cache / "python", failing) == cache / "python"
    assert [one.name for one in cache.rglob("*")] == ["python", "whole"]


def test_folder_that_another_process_makes_meanwhile_is_used(tmp_path: Path) -> None:
    wanted = tmp_path / "python"

    def late(folder: Path, _: Path) -> None:
        (folder / "mine").touch()
        wanted.mkdir()
        (wanted / "theirs").touch()

    assert made_once(wanted, late) == wanted
    assert [one.name for one in tmp_path.rglob("*")] == ["python", "theirs"]
