"""SQL over live state, by DuckDB, which is imported when a statement runs (docs/sql.md).

Imports `reader` and what lies below it. Begin with `database.py`.
"""
