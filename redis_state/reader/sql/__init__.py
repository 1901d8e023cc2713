"""SQL over live state, by DuckDB; it is imported when a statement runs."""
