"""Seeds that have found the mutants, which `make test` plays first: a whole search takes minutes.

`python -m tests.faults.oracle.known_seeds` searches for all mutants, and writes `known_seeds.json`
again. A seed that no longer finds its mutant costs time only: the whole search follows.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.faults.campaign import Verdict
from tests.faults.oracle.campaign import ORACLE, one_mutant, played_on
from tests.faults.oracle.mutants import MUTANTS

_PATH = Path(__file__).with_suffix(".json")


def _known_first(name: str) -> Verdict:
    seed = json.loads(_PATH.read_text()).get(name)
    if seed is not None and (found := played_on(name, [seed])).failure is not None:
        return found
    return one_mutant(name)


QUICK = replace(ORACLE, one_mutant=_known_first)
"""The oracle, whose search for a mutant begins with its known seed."""


def main() -> int:
    """Writes the first seed that finds each mutant; 1 if a mutant was not found."""
    verdicts = list(ORACLE.verdicts([one.name for one in MUTANTS], None))
    seeds = {one.name: one.failure.seed for one in verdicts if one.failure is not None}
    _PATH.write_text(json.dumps(seeds, indent=2) + "\n")
    return 0 if len(seeds) == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
