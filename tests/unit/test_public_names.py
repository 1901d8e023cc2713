"""Public names of the package; a removed or accidental name fails here."""

from __future__ import annotations

from importlib import import_module

import pytest

import redis_state

NAMES = [
    "BatchStore",
    "BootstrapColumns",
    "ColumnState",
    "EmbeddedRedis",
    "Forked",
    "GroupState",
    "ListStateStore",
    "Migration",
    "ReadStateStore",
    "StateObject",
    "StateStore",
    "StateStoreCoordinator",
    "StateStoreId",
    "StateStoreProvider",
    "StateStoreProviderId",
    "__version__",
    "apply_in_pandas_with_state",
    "bootstrap",
    "bootstrap_columns",
    "configure",
    "connect",
    "drop_kept",
    "foreach_batch_with_state_store",
    "fork",
    "keep",
    "kept_versions",
    "lookup",
    "map_partitions_with_state_store",
    "migrate",
    "rescale",
    "rescale_store",
    "state_objects",
    "stores",
    "transform_columns_with_state",
    "transform_with_state",
]
MODULES = {
    "aio": ["LiveView", "OperatorState", "Query", "QueryView", "Reader", "connect"],
    "backend.client": ["Client"],
    "codec": ["MSGPACK", "RAW", "Codec"],
    "config": ["Config", "parse", "resolve"],
    "coordinator": ["Instance", "StateStoreCoordinator", "StateStoreCoordinatorRef"],
    "embedded": ["EmbeddedRedis"],
    "errors": [
        "CommitOutcomeUnknownError",
        "ConfigError",
        "ConflictError",
        "FormatError",
        "FullError",
        "InternalError",
        "LimitError",
        "NotFoundError",
        "RedisStateError",
        "StateError",
        "UnavailableError",
        "UsageError",
    ],
    "ids": ["StateStoreId", "StateStoreProviderId"],
    "store.maintenance": ["Maintained", "MaintenanceWorker"],
    "live": ["Reader", "connect"],
    "protocol": ["checkpoint_gen", "register_run"],
    "store.provider": ["StateStoreProvider"],
    "reader": [
        "Cause",
        "CauseKind",
        "Change",
        "ChangeBatch",
        "Hold",
        "HotKey",
        "HotKeys",
        "LiveView",
        "OperatorState",
        "PartitionStatus",
        "Query",
        "QueryInfo",
        "QueryStatus",
        "QueryView",
        "Revision",
        "SlowCause",
        "SlowCauseKind",
        "Slowness",
        "StoreStatus",
        "TimeSpent",
        "state_objects",
    ],
    "spark": ["BatchStore", "configure", "lookup", "transform_with_state"],
    "store": ["ListStateStore", "ReadStateStore", "StateStore"],
    "testing": ["ProcessorTest", "redis_url"],
    "store.stores": [
        "LoadedStores",
        "coordinator",
        "get",
        "get_read_only",
        "is_loaded",
        "loaded",
        "maintain_every",
        "stop",
        "unload",
    ],
}


def test_package_has_exactly_these_public_names() -> None:
    assert sorted(redis_state.__all__) == NAMES
    assert [name for name in NAMES if not hasattr(redis_state, name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_public_module_has_exactly_these_names(module: str) -> None:
    found = import_module(f"redis_state.{module}")
    assert [name for name in MODULES[module] if not hasattr(found, name)] == []
