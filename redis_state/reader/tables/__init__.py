"""Rows of a family as Arrow columns, batches and tables of one version.

Imports `rows` and `reader`'s scan. Begin with `columns.py`.
"""
