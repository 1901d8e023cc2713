"""Environments of other Python versions, for suites of `make test-long`.

    python tools/pythons.py 3.10 3.13

An interpreter is the one on PATH, or one that pyenv has installed; none is downloaded. The
environment is the folder `.venv-pyVERSION`, with all extras and the newest pyspark that supports
the version. It is completed when pyproject.toml is newer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.commands import output_of

ROOT = Path(__file__).resolve().parents[1]
_INSTALL_S_MAX = 1800


class PythonError(Exception):
    """A Python version is not available on this machine, or its environment cannot be made."""


def ensure(version: str) -> Path:
    """Returns the interpreter of an environment with all extras.

    Raises:
        PythonError: The message names what is missing.
    """
    folder = ROOT / f".venv-py{version}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    project = ROOT / "pyproject.toml"
    with (ROOT / ".venv-py.lock").open("w") as lock:
        # Several suites run at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.stat().st_mtime >= project.stat().st_mtime:
            return python
        # Also completes an environment whose creation was interrupted.
        output_of([_interpreter(version), "-m", "venv", folder], PythonError)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--editable", f"{ROOT}[dev]"]
        output_of(command, PythonError, limit_s=_INSTALL_S_MAX)
        stamp.touch()
    return python


def _interpreter(version: str) -> Path:
    """Returns a program of this version that starts; pyenv's links on PATH may not."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    if on_path := shutil.which(f"python{version}"):
        found.append(Path(on_path))
    for program in found:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        shown = subprocess.run(
            [program, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        if shown.stdout.strip() == version:
            return program
    raise PythonError(f"no Python {version} on PATH or in pyenv: install python{version}")


def main(versions: list[str]) -> int:
    try:
        for version in versions:
            print(ensure(version), flush=True)
    except PythonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
