"""Spark's types, and rows of state as bytes, Python objects and Arrow arrays, without I/O.

Imports `codec`, `format` and what lies below them. Begin with `spark_types.py` (the type system)
and `codec.py` (keys and values of a family).
"""
