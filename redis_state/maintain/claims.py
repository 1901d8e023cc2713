"""Claims by which workers share partitions. Two workers at one partition only double the work."""

from __future__ import annotations

from contextlib import suppress

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import FullError
from redis_state.ids import PartitionId
from redis_state.maintain.report import Policy

_WHAT = "sharing the maintenance"
_DONE = b""


def claim(client: Client, id_: PartitionId, policy: Policy) -> bool:
    """Claims a partition until `release`; returns whether this worker should maintain it now."""
    try:
        return _claim(client, id_, policy)
    except FullError:
        # Retention without a claim: only retention gives a full server room again.
        return True


def _claim(client: Client, id_: PartitionId, policy: Policy) -> bool:
    key = keys.claim(id_)
    expiry = ("PX", str(policy.claim_ms))
    taken, found = client.call(_WHAT, [("SET", key, policy.worker, "NX", *expiry), ("GET", key)])
    # A command that is sent again finds the claim of its first attempt.
    if taken or found == policy.worker.encode():
        return True
    if found == _DONE and policy.again:
        client.call(_WHAT, [("SET", key, policy.worker, *expiry)])
        return True
    return False


def release(client: Client, id_: PartitionId, policy: Policy, *, done: bool) -> None:
    """Releases a partition, at once or, if done, when it is due again."""
    told_ms = policy.done_ms if done else 0
    args = [policy.worker, str(told_ms)]
    with suppress(FullError):
        client.script(_WHAT, script("release"), [keys.claim(id_)], args)
