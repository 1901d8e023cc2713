"""Forks and kept versions: checkpoints and names that hold the segments of a version.

docs/format.md, section 14. Imports `recovery`, `reader`, `maintain` and the layers below them; no
pyspark. Begin with `fork.py`, whose steps are in `state.py` (Redis) and `logs.py` (Spark's files),
and with `keep.py` for kept versions.
"""

from redis_state.forks.fork import Forked, fork, fork_with

__all__ = ["Forked", "fork", "fork_with"]
