"""SQL over live state, by DuckDB, which is imported when a statement runs (docs/sql.md).

Imports `reader` and the layers below it. Begin with `database.py`.
"""
