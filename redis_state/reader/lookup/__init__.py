"""Keys to values at one version: bytes and partitions of keys, caches, reads of blocks.

`key_search.py` chooses partitions, `many_keys.py` the order of caches and segments. Both it and
`points.py`, for changes, read by `segment_part.py`. Imports `reader.block_cache`, `rows` and
`protocol`.
"""
