"""Captured output of a release: a query's checkpoint folder and its keys in Redis, as JSON."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from redis_state.live import Reader
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.version_request import LATEST
from tests.support.redis_server import RedisServer

FOLDER = Path(__file__).resolve().parents[1] / "releases"
Left = dict[str, Any]


def written() -> list[str]:
    """Each kept query, as `RELEASE/QUERY`."""
    found = (path.relative_to(FOLDER) for path in FOLDER.glob("*/*.json.gz"))
    return sorted(str(path).removesuffix(".json.gz") for path in found)


def save(name: str, left: Left) -> None:
    path = FOLDER / f"{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(left, indent=1, sort_keys=True).encode()
    # Without a time, so that the same content is the same file.
    path.write_bytes(gzip.compress(raw, mtime=0))


def load(name: str) -> Left:
    left: Left = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return left


def files_of(checkpoint: Path) -> dict[str, str]:
    """Every file, hidden ones too."""
    return {
        str(path.relative_to(checkpoint)): _text(path.read_bytes())
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }


def put_files(left: Left, checkpoint: Path, *, folder: Path | None = None) -> None:
    """Write the checkpoint anew.

    Args:
        folder: What takes the place of the old folder in files of Spark that name it: the log of
            its file source, and the metadata of an operator.
    """
    files = {name: base64.b64decode(text) for name, text in left["files"].items()}
    if folder is not None:
        old, new = left["folder"].encode(), str(folder).encode()
        for name in [name for name, raw in files.items() if old in raw]:
            files[name] = files[name].replace(old, new)
            files.pop(str(Path(name).with_name(f".{Path(name).name}.crc")), None)
    for name, raw in files.items():
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def keys_of(server: RedisServer) -> dict[str, Any]:
    """Every key that stays: a string as text, a hash as an object, both in base64."""
    found: dict[str, Any] = {}
    client: Any
    with server.client() as client:
        for key in client.scan_iter(count=1000):
            if client.pttl(key) == -1:
                kind = client.type(key)
                assert kind in (b"hash", b"string"), kind
                found[_text(key)] = (
                    {_text(name): _text(value) for name, value in client.hgetall(key).items()}
                    if kind == b"hash"
                    else _text(client.get(key))
                )
    return found


def put_keys(found: dict[str, Any], server: RedisServer) -> None:
    client: Any
    with server.client() as client:
        for key, value in found.items():
            name = base64.b64decode(key)
            if isinstance(value, str):
                client.set(name, base64.b64decode(value))
            else:
                fields = {base64.b64decode(k): base64.b64decode(v) for k, v in value.items()}
                client.hset(name, mapping=fields)


def rows_of(reader: Reader, gen: str) -> dict[str, list[str]]:
    """All rows of all stores of a query, as sorted text; the driver confirms a batch later."""
    query = reader.query(gen)
    found: dict[str, list[str]] = {}
    for info in query.operators():
        families = query.operator(info.operator, info.store).families()
        if len(families) > 1:
            # Spark makes one of this name in every store; of a processor nothing is in it.
            families = [family for family in families if family.name != DEFAULT_FAMILY]
        for family in families:
            state = query.operator(info.operator, info.store, family=family.name)
            rows = state.list_items(at=LATEST) if family.multi_value else state.items(at=LATEST)
            place = f"{info.operator} {info.store} {family.name}"
            found[place] = sorted(str(row) for row in rows)
    return found


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
