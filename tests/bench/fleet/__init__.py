"""Many queries on one server; see `__main__`."""
