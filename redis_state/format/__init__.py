"""Codecs of the bytes that docs/format.md specifies: blocks, segments and manifest entries.

Does no I/O and knows nothing of Redis; imports only keys, ids and errors. Start with `segment.py`.
"""
