"""Compares the Redis provider with Spark's own ones: `make bench`, `make bench-quick`."""
