"""`python -m tests.faults.system`: schedules over whole processes, and their mutants."""

from __future__ import annotations

import sys

from tests.faults.campaign_command import run
from tests.faults.system.campaign import SYSTEM

if __name__ == "__main__":
    sys.exit(run(SYSTEM, __doc__))
