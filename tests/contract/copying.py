"""Writes a copy of a planted query as docs/format.md says, without the code that makes copies."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis_state import keys
from redis_state.format.entry import parse_segment
from redis_state.format.region import write_region
from redis_state.format.signature import BlockSigner
from redis_state.places.owners import owner_of
from tests.contract.planting import GEN, Planted, uid

FOLDER = "state/_redis_state_copies"
SEGMENTS = "state/_redis_state_segments"


def part_name(planted: Planted, partition: int) -> str:
    return f"{planted.operator}-{partition}-{keys.store_hash(planted.store)}"


def part_bytes(planted: Planted, partition: int, version: int) -> bytes:
    """The file of a partition whose deltas all stand there."""
    client: Any = planted.client
    id_ = planted.id(partition)
    meta = keys.meta(id_)
    place = f"{GEN} {planted.operator} {partition} {keys.store_hash(planted.store)}"
    lines = [f"{place} {version} {uid(version)} 1 2"]
    body = b""
    for at in range(version, 0, -1):
        ident = f"d:{at}:{uid(at)}"
        entry = client.hget(meta, ident)
        lines.append(f"{ident} {entry.decode()}")
        for name, value in client.hgetall(keys.segment(id_, ident)).items():
            body += struct.pack(">H", len(name)) + name + struct.pack(">I", len(value)) + value
    head = "\n".join(lines).encode()
    return b"rs-copy1" + struct.pack(">I", len(head)) + head + body


def plant_copy(
    planted: Planted,
    checkpoint: Path,
    version: int,
    *,
    change: Callable[[int, bytes], bytes] = lambda _partition, raw: raw,
) -> Path:
    """A copy of a version of every partition.

    Args:
        change: What becomes of a partition's file before its SHA-256 is taken.
    """
    folder = checkpoint / FOLDER / f"{version}-{version:032x}"
    folder.mkdir(parents=True)
    parts = []
    for partition in range(planted.partitions):
        raw = change(partition, part_bytes(planted, partition, version))
        (folder / part_name(planted, partition)).write_bytes(raw)
        part = {"operator": planted.operator, "partition": partition, "store": planted.store}
        parts.append({**part, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()})
    write_manifest(folder, {**manifest_of(planted, checkpoint, version), "parts": parts})
    return folder


def manifest_of(planted: Planted, checkpoint: Path, version: int) -> dict[str, object]:
    """The manifest without its parts."""
    offsets = (checkpoint / "offsets" / str(version - 1)).read_bytes()
    client: Any = planted.client
    query = client.hgetall(keys.query(GEN))
    listed = {name.decode(): value.decode() for name, value in query.items()}
    return {
        "format": 1,
        "gen": GEN,
        "version": version,
        "run": "run",
        "created": 1_700_000_000_000,
        "offsets": hashlib.sha256(offsets).hexdigest(),
        "query": {name: listed[name] for name in listed if name == "name" or name[:3] == "op:"},
    }


def plant_shared_copy(
    planted: Planted,
    checkpoint: Path,
    version: int,
    *,
    outside: bool = False,
    own_folder: str = "",
    signer: BlockSigner | None = None,
) -> Path:
    """A copy of format 2, whose partitions have one file each for all deltas up to the version."""
    client: Any = planted.client
    files = checkpoint / SEGMENTS / GEN
    parts = []
    for partition in range(planted.partitions):
        id_ = planted.id(partition)
        name = f"{part_name(planted, partition)}/1-{version}-{partition:032x}.copy"
        body, segments = b"", []
        for at in range(version, 0, -1):
            ident = f"d:{at}:{uid(at)}"
            entry = client.hget(keys.meta(id_), ident).decode()
            values = client.hgetall(keys.segment(id_, ident))
            owner = owner_of(id_, parse_segment(ident, entry))
            pieces = list(
                write_region(owner, {n.decode(): v for n, v in values.items()}, signer=signer)
            )
            size = sum(map(len, pieces))
            place = f"f {name} {len(body)} {size} {len(pieces[-1])}"
            segments.append([ident, entry, place if values else ""])
            body += b"".join(pieces) if values else b""
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(body)
        part = {"operator": planted.operator, "partition": partition, "store": planted.store}
        head = {"uid": uid(version), "checkpoint_format": 1, "retained": 2}
        parts.append({**part, **head, "segments": segments})
    folder = checkpoint / FOLDER / f"{version}-{version:032x}"
    folder.mkdir(parents=True)
    manifest = {
        **manifest_of(planted, checkpoint, version),
        "format": 2,
        "folder": f"file:{checkpoint / SEGMENTS}",
        "outside": outside or bool(own_folder),
        "parts": parts,
        "unneeded": [],
    }
    if own_folder:
        manifest["own_folder"] = own_folder
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: dict[str, object]) -> None:
    text = json.dumps(manifest).encode()
    (folder / "manifest").write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
