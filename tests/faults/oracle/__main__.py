"""`python -m tests.faults.oracle`: schedules and mutants, with their seeds and counts."""

from __future__ import annotations

import sys

from tests.faults.campaign_command import run
from tests.faults.oracle.campaign import ORACLE

if __name__ == "__main__":
    sys.exit(run(ORACLE, __doc__))
