"""The archive of Spark's classes: what is told where a JVM makes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import class_archive


def test_failed_archive_shows_the_jvm_output_and_keeps_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho Unrecognized VM option\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    archive = tmp_path / "spark.jsa"
    archive.write_bytes(b"of the environment before")
    with pytest.raises(SystemExit, match=r"(?s)Unrecognized VM option.*no archive"):
        class_archive.make(archive)
    assert archive.read_bytes() == b"of the environment before"
