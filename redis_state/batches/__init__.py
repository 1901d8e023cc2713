"""Batch protocol of stateful Python operators, without pyspark (docs/format.md, section 9).

`driver.py` plans and completes the batches of `map_partitions`. `streams.py` joins a task to its
batch of a streaming query. `event_time.py` keeps watermarks. The package imports `store` and the
layers below.
"""
