"""Script `publish` with a place: a delta whose blocks are in a file from the first."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_state import keys
from redis_state.backend.script import script
from redis_state.places.moving import announce, condemn, rows_of
from tests.contract.bound_scene import MIB, Attempt, Ledger, here, opened_ledger
from tests.support.redis_server import RedisServer

SIZE = 2_000_000


class Born(Attempt):
    """An attempt above the share, whose file is announced and never written."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.ledger, self.first = ledger, self.uid
        self.file = announce(ledger.client, ledger.id, [], version=self.parent.version + 1) or ""

    def publish(self, *, again: bool = False, entry: str = "") -> list[str]:
        """Sends the script; another attempt has another uid."""
        if not again:
            self.uid = uuid.uuid4().hex
        written, ledger = self.written, self.ledger
        args = [self.run.run_id, str(self.run.epoch), str(self.parent.version), self.parent.uid]
        args += [self.uid, str(written.entry.blocks), entry or written.entry.text, "600000", "1"]
        args += ["0", f"f {self.file} 0 {SIZE} 100", str(SIZE)]
        names = [keys.meta(ledger.id), keys.segment(ledger.id, self.field)]
        return ledger.client.script("publishing", script("publish"), names, args)

    @property
    def field(self) -> str:
        return f"d:{self.parent.version + 1}:{self.uid}"

    def row(self) -> tuple[str, int, int]:
        (row,) = (
            one for one in rows_of(self.ledger.client, self.ledger.id) if one.file == self.file
        )
        return row.state, row.segments, row.bytes


@pytest.fixture
def born(redis_server: RedisServer, tmp_path: Path) -> Iterator[Born]:
    with opened_ledger(redis_server.url, tmp_path) as ledger:
        ledger.commit(2)
        yield Born(ledger)


def test_delta_in_a_file_needs_no_room(born: Born) -> None:
    before = here(born.ledger)
    assert born.written.entry.bytes > MIB
    assert born.publish() == ["OK"]
    manifest = born.ledger.manifest()
    assert manifest[b"lu"].decode() == born.uid
    assert manifest[b"f"] == b"2"
    assert manifest[f"a:{born.field}".encode()].decode().startswith(f"f {born.file} ")
    assert born.row() == ("u", 1, SIZE)
    assert here(born.ledger) == before
    # The reply was lost.
    assert born.publish(again=True) == ["ALREADY"]
    assert born.row() == ("u", 1, SIZE)
    assert born.publish(again=True, entry=f"{born.written.entry.text}0") == ["TAKEN"]


def test_later_attempt_condemns_the_file_of_the_replaced_one(born: Born) -> None:
    assert born.publish() == ["OK"]
    first, file = born.field, born.file
    born.file = announce(born.ledger.client, born.ledger.id, [], version=3) or ""
    assert born.publish() == ["OK"]
    manifest = born.ledger.manifest()
    assert first.encode() not in manifest
    assert f"a:{first}".encode() not in manifest
    states = {row.file: row.state for row in rows_of(born.ledger.client, born.ledger.id)}
    assert (states[file], states[born.file]) == ("d", "u")


@pytest.mark.parametrize("how", ["condemned", "unknown"])
def test_file_that_may_be_deleted_gets_no_delta(born: Born, how: str) -> None:
    if how == "condemned":
        assert condemn(born.ledger.client, born.ledger.id, born.file, announced_ms=0)
    else:
        born.ledger.raw.delete(f"{keys.meta(born.ledger.id)[:-1]}f")
    before = born.ledger.manifest()
    assert born.publish() == ["GONE"]
    assert born.ledger.manifest() == before
