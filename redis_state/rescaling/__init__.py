"""Another number of partitions for a store of Python batches, in place, without pyspark.

Imports `batches`, `store` and what lies below them. Begin with `store.py`.
"""
