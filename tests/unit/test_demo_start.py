"""Messages of the demo when a package or Java is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import util
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from redis_state.cli.main import main
from redis_state.demo import start


def without(*names: str) -> Callable[[str], ModuleSpec | None]:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in names else util.find_spec(name)

    return find_spec


def test_missing_packages_are_named_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "util", SimpleNamespace(find_spec=without("rich", "pandas")))
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert "these packages are missing: pandas, rich. " in said
    assert "`pip install 'redis-state[demo]'`" in said
    assert start.main() == 1
    assert capsys.readouterr().err == said


def test_a_missing_java_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["demo"]) == 1
    assert "Install a JDK 17, and put `java` on PATH or set JAVA_HOME." in capsys.readouterr().err
