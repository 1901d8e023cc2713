"""State of other queries in Spark: the data source, change streams and `lookup`.

Imports `redis_state.live` and the readers. Begin with `data_source.py` and `lookup.py`.
"""
