"""`python -m redis_state.demo`: the same as `redis-state demo`."""

import sys

from redis_state.demo.start import main

sys.exit(main())
