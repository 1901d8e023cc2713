"""The handle of a processor over an opened version, without Spark."""

from __future__ import annotations

import json
from typing import Any

from redis_state.batches.event_time import declare_notes
from redis_state.batches.streams import TimeMode
from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo, Times
from redis_state.store.family_store import FamilyStore

KEY = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "name", "type": "string", "nullable": True},
            {"name": "n", "type": "integer", "nullable": True},
        ],
    }
)
GROUPS = [("a", 1), ("a", None), (None, 1), ("a\0b", 1), ("ab", 256), ("", -1)]


def handle_of(
    store: FamilyStore, now_ms: int = 0, mode: TimeMode = "processingtime", watermark_ms: int = 0
) -> Handle:
    declare_notes(store)
    return Handle(store, KEY, Times(mode, now_ms, watermark_ms), ProcessorQueryInfo("q", "r", 0))


def at(handle: Handle, key: tuple[Any, ...]) -> None:
    handle.group.key = handle.keys.encode(key)
