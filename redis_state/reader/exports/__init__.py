"""Exports: one version of a query's state as Parquet files (docs/format.md, section 13)."""
