"""The batch protocol of stateful Python operators, without pyspark (docs/format.md, section 9).

`driver.py` plans and completes the batches of `map_partitions`, `streams.py` joins a task to its
batch of a streaming query, `event_time.py` keeps watermarks. Imports `store` and what lies below
it.
"""
