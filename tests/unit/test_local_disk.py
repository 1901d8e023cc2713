"""Copies of segments on a local disk: bounds, faults, and the folders of other processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from redis_state.errors import RedisStateError, UnavailableError
from redis_state.files import Folder
from redis_state.files.local import LocalFiles
from redis_state.format.place import FilePlace
from redis_state.places import local_disk
from redis_state.places.disk_folder import LOCK, PREFIX, DiskFolder
from redis_state.places.local_disk import RANGE_BYTES, LocalDisk, RegionId
from tests.support.forking import in_child
from tests.support.manual_clock import ManualClock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs locks of POSIX"),
]


class Played(LocalFiles):
    """Files whose reads are counted, and may fail."""

    def __init__(self) -> None:
        self.reads = 0
        self.before: Callable[[], object] = lambda: None

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        self.reads += 1
        self.before()
        return super().read_ranges(path, spans)

    def error(self, attempted: str, error: Exception) -> RedisStateError:  # type: ignore[override]
        return UnavailableError(attempted, found=str(error))


class Scene:
    """A disk whose copies are made when `copy` is called, and files to copy."""

    def __init__(self, folder: Path, *, bytes_max: int = 64 << 20) -> None:
        self.parent, self.files, self.clock = folder / "disk", Played(), ManualClock()
        (folder / "segments").mkdir()
        self.source = folder / "segments"
        self.folder = Folder(self.files, str(self.source), str(self.source))
        self.disk = LocalDisk(bytes_max, [self.parent], clock=self.clock, threaded=False)

    def region(self, number: int, size: int = 100) -> RegionId:
        (self.source / f"{number}.seg").write_bytes(bytes([number]) * size)
        return RegionId("gen", FilePlace(f"{number}.seg", 0, size, 8))

    def copy(self, *regions: RegionId) -> list[Path]:
        for one in regions:
            self.disk.want(one, self.folder)
        self.disk.copy_all()
        return self.copies

    def has(self, region: RegionId) -> bool:
        return self.disk.read(region, [(0, 1)]) is not None

    @property
    def copies(self) -> list[Path]:
        return sorted(self.parent.rglob("*.seg"))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_region_is_read_from_its_copy_once_its_file_is_gone(scene: Scene) -> None:
    size = 2 * RANGE_BYTES + 7
    whole = scene.region(1, size)
    raw = os.urandom(size)
    (scene.source / "1.seg").write_bytes(raw)
    inner = RegionId("gen", FilePlace("1.seg", 300, 200, 8))
    assert scene.disk.read(whole, [(5, 10)]) is None
    # Two that need it at once begin one copy.
    assert len(scene.copy(whole, whole, inner)) == 2
    assert scene.files.reads == 4
    assert scene.disk.used_bytes == size + 200
    (scene.source / "1.seg").unlink()
    assert scene.disk.read(whole, [(5, 10), (size - 7, 7)]) == [raw[5:15], raw[-7:]]
    assert scene.disk.read(inner, [(10, 20)]) == [raw[310:330]]
    rights = scene.copies[0].parent.stat().st_mode & 0o777
    assert rights == 0o700
    scene.disk.close()
    assert list(scene.parent.iterdir()) == []
    assert scene.copy(scene.region(2)) == []


@pytest.mark.parametrize("fault", ["cut", "gone", "a folder"])
def test_copy_that_cannot_be_read_is_a_miss_for_a_minute(scene: Scene, fault: str) -> None:
    one = scene.region(1)
    (path,) = scene.copy(one)
    path.unlink()
    if fault == "cut":
        path.write_bytes(b"x")
    elif fault == "a folder":
        path.mkdir()
    assert scene.disk.read(one, [(50, 10)]) is None
    scene.copy(one)
    assert scene.disk.used_bytes == 0
    scene.clock.now_s += 61
    scene.copy(one)
    assert scene.has(one)


def test_copy_unused_for_longest_makes_way(tmp_path: Path) -> None:
    scene = Scene(tmp_path, bytes_max=250)
    a, b, c, d = (scene.region(number) for number in range(4))
    scene.copy(a, b, c)
    assert [scene.has(one) for one in (a, b, c)] == [True, True, False]
    scene.clock.now_s += 61
    assert scene.has(a)
    scene.copy(d)
    assert [scene.has(one) for one in (a, b, c, d)] == [True, False, False, True]
    scene.copy(scene.region(4, 251))
    assert scene.disk.used_bytes == 200
    assert len(scene.copies) == 2


def test_process_that_reads_more_than_the_disk_takes_does_not_copy_all_the_time(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, bytes_max=250)
    regions = [scene.region(number) for number in range(10)]
    for _ in range(59):
        for one in regions:
            if not scene.has(one):
                scene.copy(one)
        scene.clock.now_s += 1
    assert scene.files.reads == 2


def test_copy_of_a_file_system_that_fails_leaves_nothing(scene: Scene) -> None:
    one = scene.region(1, 2 * RANGE_BYTES)

    def fail() -> None:
        if scene.files.reads == 2:
            raise TimeoutError

    scene.files.before = fail
    assert scene.copy(one) == []
    assert scene.disk.used_bytes == 0
    scene.clock.now_s += 61
    scene.files.before = lambda: scene.disk.drop(one)
    assert scene.copy(one) == []
    scene.files.before = lambda: None
    scene.clock.now_s += 61
    (scene.source / "1.seg").write_bytes(b"cut")
    assert scene.copy(one) == []


def test_removed_folder_is_made_again(scene: Scene) -> None:
    one, two = scene.region(1), scene.region(2)
    (path,) = scene.copy(one)
    for file in [path, path.parent / LOCK]:
        file.unlink()
    path.parent.rmdir()
    assert scene.copy(two) == []
    assert not scene.has(one)
    scene.clock.now_s += 61
    scene.copy(one)
    assert scene.has(one)


@pytest.mark.parametrize("when", ["first", "later"])
def test_disk_that_takes_nothing_is_off_with_one_warning(
    scene: Scene, when: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [scene.region(number) for number in range(3)]
    if when == "later":
        scene.copy(regions[0])

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "open", full)
    else:
        scene.parent.write_text("a file")
    with caplog.at_level(logging.WARNING):
        scene.copy(regions[1])
        scene.clock.now_s += 61
        scene.copy(regions[2])
    assert scene.disk.used_bytes == 0
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "'localDisk' is off in this process" in caplog.text


def test_process_without_another_thread_reads_the_files(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk, one = LocalDisk(1 << 20, [scene.parent], clock=scene.clock), scene.region(1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        disk.want(one, scene.folder)
    assert disk.used_bytes == len(disk._wanted) == 0
    assert disk.read(one, [(0, 1)]) is None
    disk.close()


def test_closed_disk_gets_no_other_thread(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, one = LocalDisk(1 << 20, [scene.parent], clock=scene.clock), scene.region(1)
    disk.close()
    # Of a reader that looked before.
    monkeypatch.setattr(disk, "_may_copy", lambda _: True)
    disk.want(one, scene.folder)
    assert not disk._thread.is_running
    assert not scene.parent.exists()


def test_copy_that_makes_way_is_gone_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, waiting = Scene(tmp_path, bytes_max=250), []
    scene.copy(scene.region(1, 200))
    scene.clock.now_s += 61
    monkeypatch.setattr(local_disk, "_delete", lambda _: waiting.append(len(scene.disk._wanted)))
    scene.copy(scene.region(2, 200))
    assert waiting == [0]


def test_warning_has_the_folder_that_took_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"full": [9, 1], "other": [5, 5]}
    parents = [tmp_path / name for name in free]
    monkeypatch.setattr(local_disk, "_free", lambda parent: free[parent.name].pop(0))
    scene = Scene(tmp_path)
    parents[0].write_text("a file")
    disk = LocalDisk(1 << 20, parents, clock=scene.clock, threaded=False)
    disk.want(scene.region(1), scene.folder)
    disk.copy_all()
    assert f"the folder {parents[0]} takes no files" in caplog.text


def test_folder_goes_while_one_of_its_copies_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DiskFolder.open(tmp_path)
    files = [folder.new_file() for _ in range(3)]
    for file in files:
        file.write_bytes(b"x")
    listed = [*files, folder.path / LOCK]
    files[0].unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", lambda _: iter(listed))
        folder.close()
    assert list(tmp_path.iterdir()) == []


def test_forked_child_leaves_its_parents_copies_alone(scene: Scene) -> None:
    one = scene.region(1)
    scene.copy(one)

    def child() -> list[object]:
        found: list[object] = [scene.has(one), scene.copy(scene.region(2)) == scene.copies]
        scene.disk.close()
        # An own folder is of this process, and its parent's folder stays.
        DiskFolder.open(scene.parent).close()
        return found

    assert in_child(child) == [False, True]
    assert scene.has(one)
    # The child has closed its descriptor of the lock.
    DiskFolder.open(scene.parent).close()
    assert in_child(lambda: DiskFolder.open(scene.parent).close()) is None
    assert scene.has(one)


_HOLDER = """
import sys, time
from pathlib import Path
from redis_state.places import local_disk
from redis_state.places.disk_folder import DiskFolder
print(DiskFolder.open(Path(sys.argv[1])).path, flush=True)
time.sleep(60)
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(parent)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (living, kept), (killed, left) = holder(tmp_path), holder(tmp_path)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        own, second = DiskFolder.open(tmp_path), DiskFolder.open(tmp_path)
        assert not left.exists()
        assert (kept / LOCK).exists()
        own.close()
        assert second.path.exists()
        second.close()
    finally:
        for process in (living, killed):
            process.kill()
            process.communicate()
    DiskFolder.open(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_bytes(b"x")
    (tmp_path / f"{PREFIX}1-0-a").symlink_to(other)
    left, linked = tmp_path / f"{PREFIX}1-0-b", tmp_path / f"{PREFIX}1-0-c"
    left.mkdir()
    (left / "1.seg").symlink_to(other / "kept")
    linked.mkdir()
    (linked / LOCK).symlink_to(other / "kept")
    nested = tmp_path / f"{PREFIX}1-0-d" / "inner"
    nested.mkdir(parents=True)
    DiskFolder.open(tmp_path).close()
    assert (other / "kept").exists()
    assert linked.exists()
    assert nested.exists()
    assert not left.exists()
