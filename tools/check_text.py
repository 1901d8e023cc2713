"""Checks rules on tracked text that no linter covers: sizes, machine paths, left-overs, English.

    python tools/check_text.py                   every tracked file, and the subject of HEAD
    python tools/check_text.py --subject FILE    the subject of a commit message (a Git hook)

A docstring or scaladoc opens with a technical verb in the third person, or with a noun. Openings
that point at something instead of naming it are refused; CONTRIBUTING.md has the rules of English.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 500
MODULE_LINES_MAX = 450
"""Most lines of a module of the product; tests and tools may have `LINES_MAX`."""
MODULES_MAX = 20
"""Most modules of a package of the product, at one level; `__init__.py` does not count."""

MODULE = re.compile(
    r"redis_state/.*(?<!/__init__)\.py$|jvm-adapter/[^/]+/(?:src/main|scala-shims)/.*\.scala$"
)
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
_POINTERS = (
    r"(?:As (?=`|\[\[)|The same\b|(?:What|How|Where|Whether|Which|Who|Why|When|That|Those|It|Lets?"
    r"|Says?|Tells?|Takes?|Gives?|Puts?|Looks?(?! keys| up)|Has"
    r"|Of|So|Without|From|Not|Only|Also|By)\b)"
)
OPENING = re.compile(_POINTERS)
SCALADOC = re.compile(r"^\s*/\*\*\s+(" + _POINTERS + ".*)")
SUBJECT_MAX = 72
SUBJECT_VERBS = re.compile(r"(?:Let|Say|Have|Take|Put|Give|Show|Tell|Mend|Keep|Ask|Look|Stand)\b")
# Maven's own XML namespace, which is not an address to download from.
ALLOWED = re.compile(r"maven\.apache\.org/(?:POM|xsd)")


def problems_of(path: Path) -> list[str]:
    """Returns the problems of one file, as `name:line: what`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    name = path.relative_to(ROOT)
    lines_max = MODULE_LINES_MAX if MODULE.match(name.as_posix()) else LINES_MAX
    found = []
    if path.suffix in SOURCES and len(lines) > lines_max:
        found.append(f"{name}: {len(lines)} lines, more than {lines_max}")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip() and path.suffix != ".md":
            found.append(f"{name}:{number}: blanks at the end of the line")
        found += [
            f"{name}:{number}: {what}"
            for what, pattern in FORBIDDEN.items()
            if pattern.search(ALLOWED.sub("", line))
        ]
    if path.suffix == ".py":
        found += [f"{name}:{line}: {what}" for line, what in openings_of("\n".join(lines))]
    elif path.suffix == ".scala":
        found += [
            f"{name}:{number}: {_pointing(match[1])}"
            for number, line in enumerate(lines, 1)
            if (match := SCALADOC.match(line))
        ]
    return found


def openings_of(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and fault of each docstring whose first line points instead of naming."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        # Such as a merge marker, which has a line of its own in the report.
        yield error.lineno or 1, "this is not Python"
        return
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            first = text.split("\n", 1)[0]
            if OPENING.match(first):
                yield node.body[0].lineno, _pointing(first)


def crowded(paths: Iterable[Path]) -> list[str]:
    """Returns the packages of the product that have more modules than a reader can survey."""
    counts = Counter(
        path.parent for path in paths if MODULE.match(path.relative_to(ROOT).as_posix())
    )
    return [
        f"{folder.relative_to(ROOT)}: {count} modules, more than {MODULES_MAX}"
        for folder, count in counts.items()
        if count > MODULES_MAX
    ]


def _pointing(first: str) -> str:
    return f"the first line points instead of naming: {first!r}"


def subject_problems(subject: str) -> list[str]:
    """Faults of the subject of a commit message; merges have none."""
    found: list[str] = []
    if subject.startswith(("Merge ", "Revert ")):
        return found
    if len(subject) > SUBJECT_MAX:
        found.append(f"{subject!r}: {len(subject)} characters, more than {SUBJECT_MAX}")
    if SUBJECT_VERBS.match(subject):
        found.append(f"{subject!r}: opens with a verb that says little; name the technical step")
    if not subject[:1].isupper() or subject.endswith("."):
        found.append(f"{subject!r}: a subject opens with a capital and has no full stop")
    return found


def newest_subject() -> str:
    """Subject of HEAD; empty in a tree without git."""
    command = ["git", "-c", "safe.directory=*", "log", "-1", "--format=%s"]
    if not shutil.which("git"):
        return ""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


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


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--subject"]:
        found = subject_problems(Path(arguments[1]).read_text(encoding="utf-8").split("\n", 1)[0])
        print("\n".join(found))
        return 1 if found else 0
    paths = list(sources())
    found = [
        problem
        for path in paths
        if path.suffix in TEXTS and path.is_file()
        for problem in problems_of(path)
    ]
    found += crowded(paths)
    if subject := newest_subject():
        found += subject_problems(subject)
    print("\n".join(found) if found else f"{len(paths)} files: no left-overs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
