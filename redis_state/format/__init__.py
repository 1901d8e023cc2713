"""The stored bytes of docs/format.md: blocks, segments and manifests to objects and back.

No I/O, and nothing of Redis: imports keys, ids and errors only. Begin with `segment.py`.
"""
