"""Reads over time: diff, history, hot keys and the change feed, from the kept deltas.

Imports `reader`'s modules about versions and families, and no look-up. Begin with `deltas.py`.
"""
