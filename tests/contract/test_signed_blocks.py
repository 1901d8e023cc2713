"""Blocks that carry a signature: who has no key can neither read nor change them unnoticed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.errors import ConfigError, FormatError
from redis_state.format import block
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer, bytes_of

ROWS = {("n", number): [number] * 9 for number in range(400)}
VERSIONS = 6
_HEAD_BYTES = 17

Open = Callable[..., StateStoreProvider]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("5" * 64 + "\n")
    return path


@pytest.fixture
def name() -> str:
    return f"signed {uuid.uuid4().hex}"


@pytest.fixture
def open_provider(redis_server: RedisServer, name: str) -> Iterator[Open]:
    made: list[StateStoreProvider] = []

    def new(secret: Path | None, *, partition: int = 0) -> StateStoreProvider:
        options = config.parse({"url": redis_server.url, "signingKeyFile": secret})
        id_ = StateStoreProviderId(StateStoreId(name, 0, partition), "run-1")
        made.append(StateStoreProvider(id_, config=options))
        return made[-1]

    yield new
    for provider in made:
        provider.close()


def fill(provider: StateStoreProvider) -> dict[object, object]:
    rows: dict[object, object] = {}
    for version in range(VERSIONS):
        changed = dict(list(ROWS.items())[version * 50 : version * 50 + 150])
        store = provider.get_store(version)
        store.put_many(changed)
        store.commit()
        rows |= changed
    return rows


def read(provider: StateStoreProvider) -> dict[object, object]:
    return dict(provider.get_read_store(VERSIONS).iterator())


def a_block(client: redis.Redis, *, partition: int = 0) -> tuple[bytes, bytes, bytes]:
    """Key, field and value of one block of the newest version."""
    (key,) = client.keys(f"*:0:{partition}:*:d:{VERSIONS}:*")
    return key, b"0/0", client.hget(key, "0/0")  # type: ignore[return-value]


def test_signed_state_is_read_and_maintained(
    redis_server: RedisServer, open_provider: Open, secret: Path, name: str
) -> None:
    rows = fill(open_provider(secret))
    assert read(open_provider(secret)) == rows
    client = redis_server.client()
    assert a_block(client)[2][0] == block.SIGNED_MAGIC
    words = ["maintain", "--once", "--url", redis_server.url]
    assert main([*words, "--signing-key-file", str(secret)]) == 0
    of_client = Client(config.parse({"url": redis_server.url}))
    gen = checkpoint_gen(of_client, name)
    of_client.close()
    meta = keys.meta(StateStoreId(name, 0, 0).partition(gen or ""))
    assert any(field.startswith(b"s:") for field in map(bytes_of, client.hkeys(meta)))
    assert read(open_provider(secret)) == rows


def test_maintainer_keeps_signed_and_unsigned_state_if_configured(
    redis_server: RedisServer,
    open_provider: Open,
    secret: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The maintainer treats unsigned blocks as forged by default, and never signs them."""
    signed = fill(open_provider(secret))
    plain = fill(open_provider(None, partition=1))
    words = ["maintain", "--once", "--url", redis_server.url, "--signing-key-file", str(secret)]
    assert main([*words, "--deep"]) == PROBLEMS_STATUS
    caught = capsys.readouterr()
    assert "1 snapshots added" in caught.out
    assert "partition 1 store default" in caught.err
    assert "partition 0 store default: reading" not in caught.err
    assert main([*words, "--deep", "--unsigned-too"]) == 0
    assert "1 snapshots added" in capsys.readouterr().out
    assert read(open_provider(secret)) == signed
    assert read(open_provider(None, partition=1)) == plain
    with redis_server.client() as client:
        for partition, magic in ((0, block.SIGNED_MAGIC), (1, block.MAGIC)):
            (snapshot,) = client.keys(f"*:0:{partition}:*:s:*")
            assert {value[0] for value in client.hvals(snapshot)} == {magic}
    assert name


def test_changed_block_is_refused(
    redis_server: RedisServer, open_provider: Open, secret: Path
) -> None:
    for partition in (0, 1):
        fill(open_provider(secret, partition=partition))
    client = redis_server.client()
    key, field, value = a_block(client)
    ident = key.decode().rpartition("d:")[2]
    payload = block.decode(f"d:{ident}", "0/0", value[_HEAD_BYTES:])
    forged = block.encode(f"d:{ident}", "0/0", payload.replace(b"n", b"m"))
    for bad in (
        forged,
        value[:_HEAD_BYTES] + forged,
        value[:_HEAD_BYTES],
        client.hget(key, "0/1"),
        a_block(client, partition=1)[2],
        value[:1] + bytes(16) + value[_HEAD_BYTES:],
    ):
        client.hset(key, field, bad)
        with pytest.raises(FormatError, match="not signed with this key"):
            read(open_provider(secret))
    client.hset(key, field, value)
    assert read(open_provider(secret))


def test_state_signed_with_another_key_is_refused(
    open_provider: Open, secret: Path, tmp_path: Path
) -> None:
    fill(open_provider(secret))
    with pytest.raises(FormatError, match="it is signed: give the key in 'signingKeyFile'"):
        read(open_provider(None))
    other = tmp_path / "other"
    other.write_bytes(bytes(32))
    with pytest.raises(FormatError, match="not signed with this key"):
        read(open_provider(other))
    fill(open_provider(None, partition=2))
    with pytest.raises(FormatError, match="not signed with this key"):
        read(open_provider(secret, partition=2))


def test_unusable_signing_key_is_named(open_provider: Open, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("x" * 31 + "\r\n")
    for path, found in ((short, "it has 31 bytes"), (tmp_path / "absent", "there is no such file")):
        with pytest.raises(ConfigError, match=found) as caught:
            open_provider(path)
        assert "signingKeyFile" in str(caught.value)
