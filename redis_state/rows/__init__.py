"""Spark's types, and state rows as bytes, Python objects and Arrow arrays. Does no I/O.

Imports only `codec`, `format` and the layers below. Start with `spark_types.py` (the type system)
and `codec.py` (keys and values of a family).
"""
