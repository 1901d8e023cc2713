"""Plan of an export, and its finished partitions, by which an interrupted export is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from redis_state.exports.folder import ExportFolder
from redis_state.exports.layout import PLAN
from redis_state.exports.manifest import (
    ExportedPartition,
    family_json,
    parse_family,
    parse_partition,
    partition_json,
)
from redis_state.exports.sealed import damaged, read_sealed, sealed
from redis_state.format.header import Family
from redis_state.ids import Pin, is_gen

DonePartition = tuple[ExportedPartition, tuple[Family, ...]]
"""A finished partition and its family table."""


@dataclass(frozen=True, slots=True)
class ExportedVersions:
    """The exported version of each partition of a store."""

    operator: int
    store: str
    name: str
    pins: tuple[Pin, ...]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Content of an export; constant while the export is made."""

    export: str
    created: int
    asked: Mapping[str, Any]
    version: int | None
    batch: int | None
    fields: Mapping[str, str]
    left_out: tuple[tuple[int, str], ...]
    stores: tuple[ExportedVersions, ...]

    def to_json(self) -> bytes:
        """Encodes the plan for `plan.json`."""
        content = asdict(self)
        for store, encoded in zip(self.stores, content["stores"], strict=True):
            encoded["pins"] = [astuple(pin) for pin in store.pins]
        return sealed(content)


def parse_plan(folder: ExportFolder) -> ExportPlan:
    """Reads the plan of an export.

    Raises:
        NotFoundError: There is no plan.
        FormatError: The plan is damaged.
    """
    raw = read_sealed(folder, PLAN)
    try:
        if not is_gen(raw["export"]):
            raise ValueError
        stores = tuple(
            ExportedVersions(
                one["operator"],
                one["store"],
                one["name"],
                tuple(Pin(version, uid) for version, uid in one["pins"]),
            )
            for one in raw["stores"]
        )
        left_out = tuple((operator, store) for operator, store in raw["left_out"])
        content = raw | {"left_out": left_out, "stores": stores}
        return ExportPlan(**{one.name: content[one.name] for one in fields(ExportPlan)})
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{PLAN} is malformed") from error


def done_json(done: DonePartition) -> bytes:
    """Encodes a finished partition."""
    families = [family_json(family) for family in done[1]]
    return sealed({"partition": partition_json(done[0]), "families": families})


def parse_done(folder: ExportFolder, name: str) -> DonePartition:
    """Reads a finished partition.

    Raises:
        NotFoundError: There is no such file.
        FormatError: The file is damaged.
    """
    raw = read_sealed(folder, name)
    try:
        return parse_partition(raw["partition"], 1), tuple(map(parse_family, raw["families"]))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{name} is malformed") from error
