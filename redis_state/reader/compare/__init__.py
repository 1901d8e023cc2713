"""Differences between two versions of a store, of one checkpoint or of two.

Begin with `partition_rows.py`, which compares a partition by its segments; `one_family.py` does so
for `OperatorState.diff`. `reader.comparison` compares whole queries: it needs their views, which
need this package. Imports `reader.feed`, `reader.lookup` and the modules beside them.
"""
