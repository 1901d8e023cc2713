"""Replay: runs a batch of a query again with other code, on a fork of its state.

Imports `forks`, `reader`, `maintain` and `recovery`. Sessions and frames of Spark are arguments, so
pyspark is imported for types only. Begin with `replay.py`: `planned_batch.py` reads the batch in
Spark's logs, `output.py` and `state.py` compare what it made with production.
"""
