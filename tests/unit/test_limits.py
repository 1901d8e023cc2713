"""Numbers that both languages have to share, on the table that the JVM is tested on too."""

from __future__ import annotations

import json
from pathlib import Path

from redis_state import config, url
from redis_state.backend import cluster, retry, start
from redis_state.format import block, bucketing, chunks, entry, header, rows, segment, signature
from redis_state.maintain import hot_run
from redis_state.protocol import instances, partition, retention, runs, snapshots

TABLE = Path(__file__).resolve().parents[1] / "vectors" / "limits.json"
OURS = {
    "keyBytesMax": rows.KEY_BYTES_MAX,
    "valueBytesMax": rows.VALUE_BYTES_MAX,
    "blockBytesMax": block.RAW_LENGTH_MAX,
    "bucketRows": bucketing.ROWS_A_BUCKET,
    "bucketBytes": bucketing.BYTES_A_BUCKET,
    "bucketsMax": entry.BUCKETS_MAX,
    "bucketPartBytes": segment.PART_BYTES_MAX,
    "bucketPartsMax": header._PARTS_MAX,
    "familyIdMax": header.FAMILY_ID_MAX,
    "signingKeyBytesMin": signature.KEY_BYTES_MIN,
    "stagedTtlMs": runs.STAGED_TTL_MS,
    "droppedTtlMs": retention.DROPPED_TTL_MS,
    "ephemeralKeepMs": config.EPHEMERAL_KEEP_MS,
    "instanceTtlMs": instances.TTL_MS,
    "totalsTtlMs": instances.TOTALS_TTL_MS,
    "beatsATtl": instances.BEATS_A_TTL,
    "deltasMin": snapshots.DELTAS_MIN,
    "deltasMax": snapshots.DELTAS_MAX,
    "hotRunDeltasMax": snapshots.HOT_RUN_DELTAS_MAX,
    "hotRunPart": hot_run.HOT_RUN_PART,
    "retainedFieldsMax": retention.FIELDS_MAX,
    "chunkBytesMax": chunks.CHUNK_BYTES_MAX,
    "stagedBytesMax": chunks.STAGED_BYTES_MAX,
    "stagedByScriptMax": chunks.STAGED_BY_SCRIPT_MAX,
    "chunkFieldsMax": chunks.CHUNK_FIELDS_MAX,
    "acquireTriesMax": partition._ACQUIRE_TRIES_MAX,
    "publishTriesMax": partition._PUBLISH_TRIES_MAX,
    "redirectsMax": cluster._REDIRECTS_MAX,
    "backoffMinMs": round(1000 * retry._BACKOFF_MIN_S),
    "backoffMaxMs": round(1000 * retry._BACKOFF_MAX_S),
    "startCheckLimitMs": start.LIMIT_MS,
    "addressesMax": url._ADDRESSES_MAX,
}


def test_each_limit_matches_the_table() -> None:
    assert {one["name"]: one["value"] for one in json.loads(TABLE.read_text("utf-8"))} == OURS
