"""Skips of the suites: allowed on a machine that lacks something, refused in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "in_test": "import pytest\n\ndef test_one():\n    pytest.skip('no program')\n",
    "in_module": "import pytest\n\npytest.importorskip('no_such_library')\n",
    "in_fixture": (
        "import pytest\n\n@pytest.fixture\ndef engine():\n    pytest.skip('no engine')\n\n"
        "def test_one(engine):\n    pass\n"
    ),
    "without": "def test_one():\n    pass\n",
}
REASONS = ("no program", "could not import 'no_such_library'", "no engine")


@pytest.mark.parametrize(
    ("ci", "end"), [("true", "1 failed, 1 passed, 2 errors"), ("false", "1 passed, 3 skipped")]
)
def test_skips_of_tests_modules_and_fixtures_fail_in_ci_alone(
    tmp_path: Path, ci: str, end: str
) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-rs", "--continue-on-collection-errors", f"--rootdir={tmp_path}", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert end in done.stdout, done.stdout + done.stderr
    assert all(reason in done.stdout for reason in REASONS)
    assert done.stdout.count("which CI does not allow: ") == (3 if ci == "true" else 0)
