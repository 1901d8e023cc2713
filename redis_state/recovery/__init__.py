"""Recovery of a query: diagnosis, marker files, rewinds of Spark's logs, and copies (backups)."""
