"""Opens versions that the query has not confirmed, and rows of the batch that runs."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened
from redis_state.protocol.previews import EVERY_FIELD, with_previews
from redis_state.reader.version_request import UNCOMMITTED, VersionRequest
from redis_state.reader.versions import open_latest

_OFF = (None, b"0")


def open_unconfirmed(
    client: Client, ids: Sequence[PartitionId], wanted: VersionRequest, *, alone: bool
) -> list[Opened]:
    """Opens the newest published version, with rows of the running batch if they are requested.

    Args:
        ids: All partitions that batches move together; not empty.
        alone: Each partition has versions of its own.

    Raises:
        ConfigError: The query publishes no rows before their commit.
        StateError: A partition does not hold the version.
    """
    opened = open_latest(client, ids, alone=alone)
    if wanted.at != UNCOMMITTED:
        return opened
    found = with_previews(client, opened, alone=alone)
    if found and all(one.below is None for one in found):
        of = found[0].id.store
        key = keys.query(of.gen, tenant=of.tenant)
        (every,) = client.call("reading the options of a query", [("HGET", key, EVERY_FIELD)])
        if every in _OFF:
            raise ConfigError(
                "reading at='uncommitted'",
                found="the query does not publish rows before they are committed",
                advice=f"Start it with the option {EVERY_FIELD}, such as 200ms, or read "
                "at='latest'.",
            )
    return found
