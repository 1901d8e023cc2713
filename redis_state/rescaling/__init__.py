"""In-place change of the number of partitions of a Python batch store, without pyspark.

Imports `batches`, `store` and the layers below them. Begin with `store.py`: its steps are
in `versions.py` (rows) and `switch.py` (the name).
"""
