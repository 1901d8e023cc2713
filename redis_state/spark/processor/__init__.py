"""Stateful processors of PySpark with their state in the Python worker and in Redis.

Imports `batches`, `store` and the Spark edge. Begin with `transform_with_state.py` (the driver) and
`task.py` (a partition of a batch).
"""
