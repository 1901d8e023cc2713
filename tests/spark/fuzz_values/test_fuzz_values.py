"""Values of random types, through each way in and out, against Spark's own provider and reader."""

from __future__ import annotations

import os

import pytest

from tests.spark.fuzz_values import campaign
from tests.spark.streams import Streams
from tests.support.redis_server import RedisServer

SHORT = 50
MOVED_EACH = 8
"""Moving a state takes as long as all other ways out of it."""
LONG = int(os.environ.get("REDIS_STATE_FUZZ_SCHEMAS", str(campaign.SCHEMAS)))
FIRST = int(os.environ.get("REDIS_STATE_SEED", "1"))
SOME = [*campaign.groups(range(FIRST, FIRST + SHORT))]
MANY = [*campaign.groups(range(FIRST + SHORT, FIRST + LONG))]


def name_of(seeds: range) -> str:
    return f"seeds {seeds[0]} to {seeds[-1]}"


def test_python_values_round_trip(shared_redis_server: RedisServer) -> None:
    for seeds in SOME:
        assert campaign.objects(shared_redis_server.url, seeds).faults == []


@pytest.mark.long
@pytest.mark.parametrize("seeds", MANY, ids=name_of)
def test_many_python_values_round_trip(seeds: range, shared_redis_server: RedisServer) -> None:
    assert campaign.objects(shared_redis_server.url, seeds).faults == []


# Moving a state there and back is left to the long run, which begins with a query that moves.
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seeds", SOME, ids=name_of)
def test_operator_values_equal_sparks(
    seeds: range, streams: Streams, shared_redis_server: RedisServer
) -> None:
    found = campaign.operators(streams, shared_redis_server.url, seeds)
    assert found.faults == []
    assert found.compared["data source"], "nothing was compared"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seeds", SOME, ids=name_of)
def test_processor_values_equal_sparks(
    seeds: range, streams: Streams, shared_redis_server: RedisServer
) -> None:
    assert campaign.forms(streams, shared_redis_server.url, seeds).faults == []


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("seeds", MANY, ids=name_of)
def test_many_operator_values_equal_sparks(
    seeds: range, streams: Streams, shared_redis_server: RedisServer
) -> None:
    moved = MANY.index(seeds) % MOVED_EACH == 0
    found = campaign.operators(streams, shared_redis_server.url, seeds, moved=moved)
    found.add(campaign.forms(streams, shared_redis_server.url, seeds))
    assert found.faults == []
