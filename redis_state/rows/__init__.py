"""State rows as bytes, Python objects and Arrow arrays. Does no I/O.

Imports only `codec`, `format`, `types` and the layers below. Start with `codec.py` (keys and values
of a family).
"""
