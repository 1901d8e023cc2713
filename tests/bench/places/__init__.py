"""Benchmark of a state larger than Redis; start with `__main__.py`."""
