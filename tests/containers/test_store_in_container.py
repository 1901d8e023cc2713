"""The Python store and its upkeep in containers of the oldest and the newest Redis at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_state import config
from redis_state.errors import ConflictError
from tests.contract.store_support import new_providers
from tests.support.redis_container import RedisContainer, running_redis_container
from tools.servers import SERVERS, cache_folder, ensure

pytestmark = pytest.mark.docker

_NAMES = ("redis-6.2", "redis-8.0")


@pytest.fixture(params=_NAMES)
def container(request: pytest.FixtureRequest) -> Iterator[RedisContainer]:
    server = next(one for one in SERVERS if one.name == request.param)
    with running_redis_container(ensure(server, cache_folder())) as container:
        with container.client() as client:
            assert client.info("server")["redis_version"].startswith(server.version)
        yield container


def test_store_commits_snapshots_and_fences_in_a_container(container: RedisContainer) -> None:
    options = config.parse({"url": container.url, "versionsToRetain": 4})
    expected: dict[int, int] = {}
    with new_providers(container.url) as new:
        writer = new(config=options)
        for version in range(20):
            store = writer.get_store(version)
            for key in range(version, version + 50):
                store.put(key, version)
                expected[key] = version
            store.remove(version)
            del expected[version]
            assert store.commit() == version + 1
            if version % 6 == 5:
                writer.do_maintenance()
        assert dict(new(config=options).get_read_store(20).iterator()) == expected
        late = writer.get_store(20)
        newer = new(config=options, run="run-2").get_store(20)
        newer.put("owner", "run-2")
        assert newer.commit() == 21
        late.put("owner", "run-1")
        with pytest.raises(ConflictError):
            late.commit()
        assert new(config=options).get_read_store(21).get("owner") == "run-2"
