"""Checks rules on tracked text that no linter covers: module size, machine paths, left-overs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 500
SOURCES = {".py", ".scala", ".lua", ".sh"}
TEXTS = SOURCES | {".md", ".toml", ".xml", ".json", ".yml", ".yaml", ".properties"}
BUILT = {"target", "build", "dist", "jars", "__pycache__", "redis_state.egg-info"}
# One-letter character classes, so that a pattern does not match its own source.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.$}])/(?:[w]ork|[r]oot|home/\w+)/"),
    "an address of a package registry": re.compile(
        r"[r]epo\d?\.maven|[m]aven\.org|[p]ypi\.org/simple|[f]iles\.pythonhosted"
    ),
    "work left over": re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b"),
    "a merge marker": re.compile(r"^(?:<{7}|>{7}) "),
}
# Maven's own XML namespace, which is not an address to download from.
ALLOWED = re.compile(r"maven\.apache\.org/(?:POM|xsd)")


def problems_of(path: Path) -> list[str]:
    """Returns the problems of one file, as `name:line: what`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    name = path.relative_to(ROOT)
    found = []
    if path.suffix in SOURCES and len(lines) > LINES_MAX:
        found.append(f"{name}: {len(lines)} lines, more than {LINES_MAX}")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip() and path.suffix != ".md":
            found.append(f"{name}:{number}: blanks at the end of the line")
        found += [
            f"{name}:{number}: {what}"
            for what, pattern in FORBIDDEN.items()
            if pattern.search(ALLOWED.sub("", line))
        ]
    return found


def sources() -> Iterator[Path]:
    """Yields the files that git tracks; without git, all files neither hidden nor built."""
    # The checkout of a CI may belong to another user, which git refuses to read by default.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    if shutil.which("git"):
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            yield from (ROOT / name for name in listed.stdout.split("\0") if name)
            return
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name[0] != "." and name not in BUILT]
        yield from (Path(folder, name) for name in names)


def main() -> int:
    paths = list(sources())
    found = [
        problem
        for path in paths
        if path.suffix in TEXTS and path.is_file()
        for problem in problems_of(path)
    ]
    print("\n".join(found) if found else f"{len(paths)} files: no left-overs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
