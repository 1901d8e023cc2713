"""Python stores with the option `localDisk`, whose state is in files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_state import config
from redis_state.errors import FormatError, UsageError
from redis_state.files.local import LocalFiles
from redis_state.ids import StateStoreProviderId
from redis_state.places.disks import process_disk
from redis_state.places.moving import rows_of
from redis_state.places.reading import files_of
from redis_state.places.sized_cache import SizedCache
from redis_state.protocol import register_run
from redis_state.spark.worker import CLIENTS_MAX, Worker
from redis_state.store.provider import StateStoreProvider
from tests.contract.bound_scene import ID, MIB, Ledger, opened_ledger
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger whose base, of about 3 MiB, is in a file, beside a disk."""
    with opened_ledger(redis_server.url, tmp_path) as made:
        made.place_base()
        made.provider.close()
        made.options |= {"local_disk": "64m", "local_disk_folder": str(tmp_path / "disk")}
        yield made
        assert process_disk._disk is None


@pytest.fixture
def provider(ledger: Ledger) -> Iterator[StateStoreProvider]:
    made = ledger.new_provider(local_memory="1m")
    yield made
    made.close()


def copies(ledger: Ledger) -> list[Path]:
    try:
        return sorted((ledger.folder.parent / "disk").rglob("*.seg"))
    except FileNotFoundError:
        # The last provider has closed the folder meanwhile.
        return []


def until(met: Callable[[], object]) -> None:
    """Waits for the thread of the disk."""
    late = time.monotonic() + 20
    while not met():
        assert time.monotonic() < late
        time.sleep(0.01)


def some(provider: StateStoreProvider, ledger: Ledger, *, step: int = 1) -> dict[str, Any]:
    """Reads rows one after the other in a version that has nothing in memory."""
    provider.forget_older()
    provider.drop_bases()
    store = provider.get_read_store(ledger.at)
    return {key: store.get(key) for key in sorted(ledger.rows)[::step]}


def copied(provider: StateStoreProvider, ledger: Ledger) -> None:
    assert some(provider, ledger) == ledger.rows
    until(lambda: copies(ledger) and process_disk._disk and not process_disk._disk._wanted)
    until(lambda: sum(path.stat().st_size for path in copies(ledger)) == used())


def used() -> int:
    assert process_disk._disk is not None
    return process_disk._disk.used_bytes


def test_segments_that_are_needed_again_are_read_from_their_copies(
    ledger: Ledger, provider: StateStoreProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(provider, ledger)
    assert used() > 2 * MIB
    before = provider.custom_metrics["disk_hits"]

    def gone(*_: object) -> list[bytes]:
        raise FileNotFoundError

    # Another program deletes the files: this process goes on.
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "read_ranges", gone)
        assert some(provider, ledger) == ledger.rows
    assert provider.custom_metrics["disk_hits"] > before
    provider.close()
    assert list((ledger.folder.parent / "disk").iterdir()) == []


@pytest.mark.parametrize("part", ["a block", "the head", "all"])
def test_damaged_copy_gives_way_to_the_file(
    ledger: Ledger, provider: StateStoreProvider, part: str
) -> None:
    copied(provider, ledger)
    for path in copies(ledger):
        raw = bytearray(path.read_bytes())
        spans = {"a block": (100, 400), "the head": (len(raw) - 400, len(raw) - 20)}
        begin, end = spans.get(part, (0, len(raw)))
        raw[begin:end] = bytes(one ^ 0x55 for one in raw[begin:end])
        path.write_bytes(raw)
    reader = provider.get_read_store(ledger.at)
    provider.drop_bases()
    assert {key: reader.get(key) for key in ledger.rows} == ledger.rows
    other = ledger.new_provider()
    try:
        assert dict(other.get_read_store(ledger.at).iterator()) == ledger.rows
    finally:
        other.close()


def test_damage_beside_what_a_read_needs_is_not_remembered(
    ledger: Ledger, provider: StateStoreProvider
) -> None:
    copied(provider, ledger)
    for path in copies(ledger):
        raw = bytearray(path.read_bytes())
        tail = len(raw) - 12 - int.from_bytes(raw[-12:-8], "big")
        raw[tail - 8 : tail] = bytes(one ^ 0x55 for one in raw[tail - 8 : tail])
        path.write_bytes(raw)
    # As if the heads of many other regions had been read since.
    files_of(provider._client)._heads = SizedCache(1 << 20)
    assert some(provider, ledger) == ledger.rows
    provider._partition.cache.clear()
    assert dict(provider.get_read_store(ledger.at).iterator()) == ledger.rows


def test_file_that_is_damaged_too_raises_format(
    ledger: Ledger, provider: StateStoreProvider
) -> None:
    copied(provider, ledger)
    for path in [*copies(ledger), *ledger.folder.rglob("*.seg")]:
        raw = path.read_bytes()
        path.write_bytes(raw[:20] + bytes(one ^ 0x55 for one in raw[20:-600]) + raw[-600:])
    provider.drop_bases()
    store = provider.get_read_store(ledger.at)
    with pytest.raises(FormatError):
        list(store.iterator())


def test_new_base_is_copied_at_once(ledger: Ledger, provider: StateStoreProvider) -> None:
    files = {row.file for row in rows_of(ledger.client, ledger.id)}
    for _ in range(3):
        ledger.provider = provider
        ledger.commit(3)
        provider.do_maintenance()
    new = [row for row in rows_of(ledger.client, ledger.id) if row.file not in files]
    born = max(new, key=lambda row: row.bytes)
    assert born.bytes > 2 * MIB
    until(lambda: born.bytes in [path.stat().st_size for path in copies(ledger)])
    ledger.check()


def test_provider_that_is_refused_does_not_use_the_disk(ledger: Ledger) -> None:
    with pytest.raises(UsageError):
        StateStoreProvider(
            StateStoreProviderId(ID, "run"),
            config=config.parse({"url": ledger.url, "stateTtl": "1h"} | ledger.options),
            lists=True,
        )
    assert process_disk._users == 0


def test_worker_ends_the_use_of_every_provider_that_it_drops(ledger: Ledger) -> None:
    settings = config.parse({"url": ledger.url} | ledger.options)
    place = settings, ledger.id
    run = register_run(ledger.client, ledger.gen, "run-w", by_driver=True)
    worker, id_ = Worker(), StateStoreProviderId(ID, "run-w")
    for _ in range(3):
        kept = worker.serve(place, id_, run)
        assert kept.get_read_store(ledger.at).get("k1") == ledger.rows.get("k1")
        worker.keep(place, kept, "run-w")
        # The worker is the other one.
        assert process_disk._users == 2
    # A task that fails keeps nothing.
    worker.serve(place, id_, run)
    worker.serve(place, id_, run)
    assert process_disk._users == 2
    worker.close()
    assert process_disk._users == 0
    assert copies(ledger) == []


def test_copies_outlast_a_task_that_fails(ledger: Ledger) -> None:
    place = config.parse({"url": ledger.url} | ledger.options), ledger.id
    run = register_run(ledger.client, ledger.gen, "run-w", by_driver=True)
    worker, id_ = Worker(), StateStoreProviderId(ID, "run-w")
    copied(worker.serve(place, id_, run), ledger)
    there = copies(ledger)
    worker.serve(place, id_, run)
    assert copies(ledger) == there
    worker.close()
    assert copies(ledger) == []


def test_worker_that_closes_a_server_ends_the_use_of_its_providers(ledger: Ledger) -> None:
    settings = config.parse({"url": ledger.url} | ledger.options)
    place = settings, ledger.id
    run = register_run(ledger.client, ledger.gen, "run-w", by_driver=True)
    worker = Worker()
    worker.keep(place, worker.serve(place, StateStoreProviderId(ID, "run-w"), run), "run-w")
    for number in range(CLIENTS_MAX):
        other = config.parse({"url": ledger.url, "deadline": f"{number + 20}s"})
        worker.client(other)
    assert process_disk._users == 0
    worker.close()


def test_threads_read_while_copies_come_and_go(ledger: Ledger) -> None:
    failures: list[object] = []

    def read() -> None:
        provider = ledger.new_provider()
        for _ in range(3):
            found = some(provider, ledger, step=7)
            failures.extend(key for key in found if found[key] != ledger.rows[key])
        provider.close()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for path in copies(ledger):
            path.unlink(missing_ok=True)
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert failures == []


def test_forked_process_has_a_folder_of_its_own(
    ledger: Ledger, provider: StateStoreProvider
) -> None:
    copied(provider, ledger)
    before = copies(ledger)

    def child() -> tuple[int, bool, int]:
        provider.close()
        own = ledger.new_provider(local_memory="1m")
        assert some(own, ledger) == ledger.rows
        until(lambda: len(copies(ledger)) > len(before))
        folders = len({path.parent for path in copies(ledger)})
        own.close()
        return folders, copies(ledger) == before, used_or_none()

    assert in_child(child) == (2, True, 0)
    assert copies(ledger) == before
    assert some(provider, ledger) == ledger.rows


def used_or_none() -> int:
    return process_disk._disk.used_bytes if process_disk._disk else 0
