"""Keys to values at one version: bytes and partitions of keys, caches, reads of blocks.

`many_keys.py` is the entry for Spark's key hashes and Python's keys alike, `key_search.py` its
order of caches. Imports `reader.block_cache`, `rows` and `protocol`.
"""
