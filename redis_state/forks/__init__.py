"""Forks and kept versions: checkpoints and names that hold a version of another one.

docs/format.md, section 14. Imports `reader` and the layers below it; no pyspark.
"""
