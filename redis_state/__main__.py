"""`python -m redis_state`: the command `redis-state`, also where its script is not on PATH."""

import sys

from redis_state.cli.main import main

sys.exit(main())
