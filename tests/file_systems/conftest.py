"""One S3 server and one HDFS for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.file_systems.servers import Store, hdfs, s3


@pytest.fixture(scope="session")
def s3_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with s3(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def hdfs_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as store:
        yield store


@pytest.fixture(params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture
def options_file(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "storage.json"
    path.write_text(json.dumps(store.options))
    return path
