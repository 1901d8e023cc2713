"""Environments of other Python versions: made once for suites that run at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import pythons

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# A package without requirements, which notes each of its installations.
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import pathlib, zipfile

HEAD = "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\nProvides-Extra: dev\\n"
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"


def build_editable(folder, settings=None, metadata=None):
    with pathlib.Path("installed").open("a") as made:
        made.write("once\\n")
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        for file, text in (("METADATA", HEAD), ("WHEEL", WHEEL), ("RECORD", "")):
            wheel.writestr("small-1.dist-info/" + file, text)
    return name
"""


@pytest.mark.timeout(120)
def test_interrupted_environment_is_completed_once_for_two_suites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    programs = tmp_path / f".venv-py{VERSION}" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(pythons.ensure, [VERSION] * 2))
    assert found == [programs / "python"] * 2
    assert (tmp_path / "installed").read_text() == "once\n"
