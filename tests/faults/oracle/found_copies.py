"""`python -m tests.faults.oracle.found_copies`: mutants of copies, and the rule that finds each.

With `--write PAGE` the list becomes a section of the page.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tests.bench.page import replace_section
from tests.faults.oracle.campaign import ORACLE
from tests.faults.oracle.mutants import MUTANTS
from tools.markdown import list_item

_COMMAND = "python -m tests.faults.oracle.found_copies"
_NAMES = (
    (re.compile(r"\S*\.copy\b:?"), "a file"),
    (re.compile(r"\bcopy \d+-\w+"), "a copy"),
    (re.compile(r"/copies/\S+"), "its manifest"),
    (re.compile(r"\b[ds]:\d+:\w+"), "a segment"),
    (re.compile(r"\b\d{5,} ms\b|\b\d+ ms\b"), "less than half an hour"),
    (re.compile(r"b'\w .*'"), "that of a file that is needed"),
    (re.compile(r"\{[^}]*\}|-?\d+"), "some"),
)
"""Names and numbers of one schedule in the text of a problem, and words in their place."""


def main(words: list[str] | None = None) -> int:
    """Plays the mutants; 1 if one was not found."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--write", metavar="PAGE", help="put the list on this page")
    parser.add_argument("--jobs", type=int, metavar="N", help="so many processes")
    asked = parser.parse_args(words)
    rules = {one.name: one.rule for one in MUTANTS if one.of in ("copy", "walks")}
    items, lost = [], []
    for verdict in ORACLE.verdicts(list(rules), asked.jobs):
        if verdict.failure is None:
            lost.append(verdict.name)
            continue
        seed, found = verdict.failure.seed, _plain(verdict.failure.problems[0])
        items.append(f"`{verdict.name}` ({seed}): {rules[verdict.name]}. *Found by*: {found}")
    text = "\n".join(["Mutants of copies, the seed that finds each, and what is found:", ""])
    text += "\n" + "\n".join(map(list_item, items))
    print(text)
    for name in lost:
        print(f"FAILED mutant {name} lives", file=sys.stderr)
    if asked.write and not lost:
        page = Path(asked.write)
        page.write_text(replace_section(page.read_text(), _COMMAND, text))
    return 1 if lost else 0


def _plain(problem: str) -> str:
    """Returns a problem without the names of its schedule."""
    for name, word in _NAMES:
        problem = name.sub(word, problem)
    return problem


if __name__ == "__main__":
    sys.exit(main())
