"""Local state of a partition in this process: cached versions, their rows, families, memory.

Imports `protocol`, `codec` and the layers below them, nothing else of `store`. Begin with
`version.py` (one version in memory) and `loading.py` (how it gets there).
"""
