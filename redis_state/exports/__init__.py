"""Exports and imports: one version of a query as a folder of Parquet files (docs/format.md, 13).

`export.py` writes a folder, `import_plan.py` brings one back; `manifest.py` parses the metadata of
a folder and trusts none of it. Imports `recovery`, `reader`, `files` and the layers below them.
"""

from redis_state.exports.import_plan import Import, plan_import

__all__ = ["Import", "plan_import"]
