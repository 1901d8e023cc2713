"""The help of every command, and what completes it in a shell."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import redis_state
from redis_state.cli.help import INDENT
from redis_state.cli.main import build_parser, main
from redis_state.cli.other.completion import SHELLS, commands_of
from redis_state.cli.registry import GROUPS, CommandGroup

COMMANDS = sorted(commands_of(build_parser()))


def examples_of(name: str) -> list[str]:
    """The commands that the help of one ends with, in order."""
    text = commands_of(build_parser())[name].format_help()
    found: list[str] = []
    for line in reversed(text.rstrip("\n").split("\n")):
        if not line.startswith(f"{INDENT}redis-state "):
            assert line in ("example:", "examples:"), line
            break
        found.insert(0, line.strip())
    return found


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"redis-state {redis_state.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_ends_with_an_example_that_parses(name: str) -> None:
    examples = examples_of(name)
    assert examples
    for text in examples:
        words = shlex.split(text.split(" > ")[0])
        assert words[:2] == ["redis-state", name]
        assert build_parser().parse_args(words[1:]).run


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []
    assert "--checkpoint" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "`pip install 'redis-state[completion]'`" in capsys.readouterr().err


def test_other_commands_do_not_load_it() -> None:
    code = "import sys, redis_state.cli.main as m; m.build_parser(); print('shtab' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


def test_the_help_lists_commands_by_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    text = capsys.readouterr().out
    listed: dict[str, list[str]] = {}
    for line in text.partition("\ncommands:\n")[2].splitlines():
        if heading := re.fullmatch(r"  (\w+) \((.+)\):", line):
            names = listed.setdefault(heading[1], [])
        elif command := re.match(r"    ([a-z-]+)  +\w", line):
            names.append(command[1])
    assert list(listed) == ["look", "follow", "operate", "move", "other"]
    assert sorted(name for group in listed.values() for name in group) == COMMANDS
    assert listed["look"][:4] == ["queries", "show", "get", "scan"]
    assert listed["follow"] == ["changes", "top"]
    assert "    get          print the state of one key\n" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_group_holds_the_modules_of_its_package(group: CommandGroup) -> None:
    package = importlib.import_module(f"redis_state.cli.{group.name}")
    registered = {one.__name__ for one in group.commands}  # type: ignore[attr-defined]  # modules
    modules = [f"{package.__name__}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
    assert registered == {one for one in modules if hasattr(importlib.import_module(one), "add_to")}
