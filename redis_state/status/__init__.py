"""Status of queries, read from metadata only: batches, rows, bytes, partitions, causes of growth.

Imports `protocol` and the layers below it; no row of state is read. Begin with `overview.py`.
"""
