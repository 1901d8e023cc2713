"""Runs the demo as `python -m redis_state.demo`, like `redis-state demo`."""

import sys

from redis_state.demo.start import main

sys.exit(main())
