"""Recovery of a query: diagnosis, marker files, rewinds of Spark's logs, and copies (backups).

Imports `reader`, `files` and the layers below them. Begin with `doctor.py`.
"""
