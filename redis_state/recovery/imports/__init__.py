"""Imports: the state of an export in a Redis that lacks it (docs/format.md, section 13)."""

from redis_state.recovery.imports.plan import Import, plan_import

__all__ = ["Import", "plan_import"]
