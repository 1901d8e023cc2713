"""Spark's types and their values, without pyspark. Does no I/O.

Imports only `errors`, so that rows in every encoding share one description. Start with `schema.py`.
"""
