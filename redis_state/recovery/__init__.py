"""Recovery of a query: diagnosis, marker files, rewinds of Spark's logs, and copies (backups).

Imports `reader`, `files` and what lies below them. Begin with `doctor.py`.
"""
