"""Reading the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redis_state.format.header import Family, Tombstone
from redis_state.format.region import RegionOwner
from redis_state.format.rows import Appended, Value

FOLDER = Path(__file__).parents[2] / "vectors"


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


def row_of(row: list[str]) -> tuple[bytes, Value]:
    key, act, text = row
    data = bytes.fromhex(text)
    value: dict[str, Value] = {"put": data, "append": Appended(data), "remove": None}
    return bytes.fromhex(key), value[act]


def family_of(raw: dict[str, Any]) -> Family:
    return Family(
        raw["id"],
        raw["name"],
        raw["kind"],
        tuple(raw["params"]),
        raw["keySchema"],
        raw["valueSchema"],
        raw["multiValue"],
        raw["internal"],
        raw.get("ttl", False),
    )


def owner_of(case: Any, region: Any) -> RegionOwner:
    return RegionOwner(
        region["field"],
        region["entry"],
        region["ident"],
        case["gen"],
        case["operator"],
        case["partition"],
        case["store"],
        region["key"],
    )


def tombstone_of(raw: list[Any]) -> Tombstone:
    family, start, end = raw
    return Tombstone(
        family,
        None if start is None else bytes.fromhex(start),
        None if end is None else bytes.fromhex(end),
    )
