"""The commands on checkpoints in a real S3 server and a real HDFS."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.errors import RedisStateError, UsageError
from redis_state.files import Folder, folder_at
from redis_state.forks import fork_with
from redis_state.recovery.rewind import plan_rewind
from tests.contract.copying import plant_copy
from tests.contract.fork_scene import Scene
from tests.contract.planting import GEN, Planted, plant_checkpoint
from tests.file_systems.servers import Store
from tests.support.interruptions import Interrupted, interrupting
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.long

UA = {"carrier": "UA"}
VERSIONS = 5
AWS = {
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


class Case:
    """A planted checkpoint in a file system, its server, and the commands."""

    def __init__(
        self,
        store: Store,
        server: RedisServer,
        local: Path,
        options: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.store = store
        self.options = options
        self.url = f"{store.url}/{local.parent.name}/checkpoint"
        self.root = f"{store.root}/{local.parent.name}/checkpoint"
        self._server = server
        self._capsys = capsys
        for path in local.rglob("*"):
            # Only the local file system has checksums of Hadoop.
            if path.is_file() and path.suffix != ".crc":
                self.put(str(path.relative_to(local)), path.read_bytes())
        marker = {
            "format": 1,
            "gen": GEN,
            "path": hashlib.sha256(f"{self.url}/state".encode()).hexdigest(),
        }
        self.put("state/_redis_state", json.dumps(marker).encode())

    def put(self, name: str, raw: bytes) -> None:
        admin = self.store.admin
        if self.store.url.startswith("hdfs"):
            admin.makedirs(f"{self.root}/{name}".rsplit("/", 1)[0], exist_ok=True)
        admin.pipe_file(f"{self.root}/{name}", raw)

    def folder(self) -> Folder:
        return folder_at(self.url, storage_options=self.store.options)

    def run(self, command: str, *words: str) -> int:
        place = ["--url", self._server.url, "--checkpoint", self.url]
        return main([command, *place, "--storage-options", str(self.options), *words])

    def told(self) -> str:
        captured = self._capsys.readouterr()
        return captured.out + captured.err

    def files(self) -> set[str]:
        """Returns the files of the folder outside of `state`."""
        found = self.store.admin.find(self.root)
        names = {"/" + str(name).strip("/") for name in found}
        inside = {name.split("/checkpoint/", 1)[1] for name in names}
        return {name for name in inside if not name.startswith("state/")}


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def planted(raw: Any) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, VERSIONS + 1):
        planted.commit(version, [(UA, {"count": version, "total": 0.5})])
    return planted


@pytest.fixture
def case(
    store: Store,
    redis_server: RedisServer,
    planted: Planted,
    options_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Case]:
    local = plant_checkpoint(tmp_path, batches=VERSIONS)
    plant_copy(planted, local, 4)
    case = Case(store, redis_server, local, options_file, capsys)
    yield case
    store.admin.rm(case.root, recursive=True)


def rewound(to_batch: int) -> set[str]:
    """The files of a checkpoint after a rewind."""
    names = {f"offsets/{batch}" for batch in range(VERSIONS + 1)}
    names |= {f"commits/{batch}" for batch in range(VERSIONS)}
    later = {name for name in names if int(name.split("/")[1]) > to_batch}
    return (names - later) | {f"rewound-to-{to_batch}.1/{name}" for name in later}


def test_checkpoint_is_inspected_and_rewound(case: Case) -> None:
    assert case.run("doctor") == 0
    assert "Batch 4 is the newest in the commit log" in case.told()
    # As a query that is writing leaves it.
    case.put("offsets/.6.8a0f.tmp", b"half")
    before = case.files()
    assert case.run("rewind", "--to-batch", "2") == 0
    assert "commits/4 -> rewound-to-2.1/commits/4" in case.told()
    assert case.files() == before
    assert case.run("rewind", "--to-batch", "2", "--yes") == 0
    assert "5 files were moved" in case.told()
    assert case.files() == rewound(2) | {"offsets/.6.8a0f.tmp"}
    moved = case.store.admin.cat_file(f"{case.root}/rewound-to-2.1/commits/4")
    assert moved == b"v1\n4"
    assert case.run("doctor") == 0


def test_lost_state_is_restored(case: Case, raw: Any) -> None:
    raw.flushdb()
    assert case.run("doctor") == PROBLEMS_STATUS
    assert "has a copy of the state after batch 3" in case.told()
    assert case.run("restore", "--yes") == 0
    assert "4 partitions were restored, 3 files were moved" in case.told()
    assert case.files() == rewound(3)
    assert case.run("doctor") == 0


def test_a_damaged_copy_is_refused(case: Case, raw: Any) -> None:
    raw.flushdb()
    (manifest,) = (
        name
        for name in case.store.admin.find(f"{case.root}/state/_redis_state_copies")
        if str(name).endswith("/manifest")
    )
    case.store.admin.pipe_file(manifest, case.store.admin.cat_file(manifest)[:-1])
    assert case.run("restore", "--yes") == 1
    assert "its manifest does not match its SHA-256" in case.told()
    assert raw.dbsize() == 0


def test_a_rewind_that_is_killed_after_each_step_is_finished(case: Case) -> None:
    kills = 0
    while plan_rewind(case.folder(), 2).files:
        plan = plan_rewind(interrupting(case.folder(), at=0), 2)
        assert plan.folder == "rewound-to-2.1"
        with pytest.raises(Interrupted):
            plan.carry_out()
        kills += 1
    # A rename is one step; elsewhere a file is written and deleted.
    assert kills == 5 * (1 if case.folder().files.renames else 2)
    assert case.files() == rewound(2)


@pytest.mark.usefixtures("planted")
def test_interrupted_export_is_resumed_and_imported(
    store: Store,
    redis_server: RedisServer,
    raw: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if store.root:
        for name, option in AWS.items():
            monkeypatch.setenv(name, str(store.options[option]))
        root = store.url
    else:
        root = f"webhdfs://127.0.0.1:{store.options['port']}"
    place = f"{root}/{tmp_path.name}/export"
    with redis_state.connect(redis_server.url) as reader:
        before = dict(reader.query("flights").operator().to_arrow().to_pydict())
        with pytest.raises(Interrupted):
            reader.export("flights", place, progress=interrupted_at_two)
        export = reader.export("flights", place)
        with pytest.raises(UsageError, match="there is a complete export"):
            reader.export("flights", place)
        raw.flushdb()
        assert main(["import", place, "--url", redis_server.url, "--yes"]) == 0
        assert reader.query("flights").operator().to_arrow().to_pydict() == before
    inside = {
        str(name).split("/export/", 1)[1]
        for name in store.admin.find(f"{store.root}/{tmp_path.name}/export")
    }
    assert inside == {"manifest.json", *(file.path for file in export.files)}


def interrupted_at_two(what: str, done: int, _total: int) -> None:
    if what.startswith("exporting") and done == 2:
        raise Interrupted


def test_missing_files_are_named(case: Case) -> None:
    for more, said in (("/none", "there is no such folder"), ("/offsets", "no query into it")):
        case.url += more
        assert case.run("doctor") == 1
        assert said in case.told()
        case.url = case.url.removesuffix(more)


def test_missing_bucket_is_named(s3_store: Store) -> None:
    folder = folder_at("s3a://no-such-bucket/flights", storage_options=s3_store.options)
    assert folder.items() is None
    assert folder.missing().startswith("there is no bucket or container no-such-bucket")


def test_missing_rights_are_named(s3_store: Store, hdfs_store: Store, tmp_path: Path) -> None:
    wrong = {**s3_store.options, "secret": "not-the-secret"}
    with pytest.raises(RedisStateError, match="the file system refuses access") as told:
        folder_at(f"{s3_store.url}/flights", storage_options=wrong).items()
    assert "not-the-secret" not in str(told.value)
    place = f"/{tmp_path.name}"
    hdfs_store.admin.makedirs(place)
    hdfs_store.admin.chmod(place, "700")
    other = {**hdfs_store.options, "user": "somebody"}
    with pytest.raises(RedisStateError, match="Permission denied: user=somebody"):
        folder_at(f"{hdfs_store.url}{place}", storage_options=other).items()


def test_fork_that_is_killed_after_each_step_is_finished(
    store: Store, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The parent lies in the local file system, the fork in another one."""
    (tmp_path / "parent").mkdir()
    scene = Scene(redis_server, tmp_path / "parent")
    scene.run(3)
    wanted = files_of(store, finished(scene, store, f"{tmp_path.name}/whole"))
    assert {"metadata", "commits/1", "commits/2", "offsets/1", "offsets/2"} <= wanted
    kills = 0
    while killed_after(scene, store, to := f"{tmp_path.name}/new-{kills}", kills):
        assert files_of(store, finished(scene, store, to)) == wanted
        kills += 1
    assert kills > 10
    scene.raw.close()


def finished(scene: Scene, store: Store, to: str) -> str:
    """Runs the whole command, which may find that nothing is left to do; returns the folder."""
    try:
        made = scene.fork(f"{store.url}/{to}", storage_options=store.options)
    except UsageError as error:
        if "complete already" not in str(error):
            raise
    else:
        scene.check_complete(made.gen, batch=scene.batch)
    return to


def killed_after(scene: Scene, store: Store, to: str, step: int) -> bool:
    """Runs a call that ends after a change of the new folder; returns whether it got so far."""

    def opened(address: str) -> Folder:
        if address == str(scene.folder):
            return folder_at(address)
        return interrupting(folder_at(address, storage_options=store.options), at=step)

    try:
        fork_with(scene.config, str(scene.folder), to=f"{store.url}/{to}", open_folder=opened)
    except Interrupted:
        return True
    return False


def files_of(store: Store, folder: str) -> set[str]:
    found = store.admin.find(f"{store.root}/{folder}")
    return {str(name).split(f"{folder}/", 1)[1] for name in found}
