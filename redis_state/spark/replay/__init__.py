"""Replay: a batch of a query that runs again with other code, on a fork of its state.

Imports `forks`, `reader` and the Spark edge's `conf`. Begin with `replay.py`.
"""
