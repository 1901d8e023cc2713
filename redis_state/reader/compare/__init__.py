"""Differences between two versions of a store, of one checkpoint or of two.

`partition_rows.py` compares a partition by its segments; `reader.comparison` whole queries. Imports
`reader.feed`, `reader.lookup` and the modules beside them.
"""
