"""A planted query to export, and imports of what was exported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.exports import Import, plan_import
from redis_state.exports.folder import ExportFolder
from redis_state.live import Reader
from tests.contract.planting import Planted
from tests.support.redis_server import RedisServer

VERSIONS = 4
SEED = 20261123


class Stopped(BaseException):
    """Ends a command where it stands, as Ctrl-C does."""


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def planted(raw: Any) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, VERSIONS + 1):
        rows = [({"carrier": f"c{n}"}, {"count": version * n, "total": 0.5}) for n in range(200)]
        planted.commit(version, rows[: 200 // version])
    return planted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "export"


def imported(server: RedisServer, folder: Path, **given: Any) -> Import:
    """Plan an import and carry it out."""
    with closing(Client(config.parse({"url": server.url}))) as client:
        plan = plan_import(client, ExportFolder(folder), **given)
        plan.carry_out(client)
        return plan


def rows_of(reader: Reader, which: str = "flights") -> dict[str, Any]:
    return {key["carrier"]: value for key, value in reader.query(which).operator().items()}


def queried(statement: str) -> list[Any]:
    relation = duckdb.sql(statement)
    assert relation is not None
    return list(relation.fetchall())


def stop_at(number: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, _total: int) -> None:
        if what.startswith(("exporting", "importing")) and done == number:
            raise Stopped

    return progress
