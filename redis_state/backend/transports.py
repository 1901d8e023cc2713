"""Chooses the transport that a URL describes."""

from __future__ import annotations

from redis_state.backend.cluster import ClusterTransport
from redis_state.backend.sentinel import ReplicaTransport, SentinelTransport
from redis_state.backend.transport import ServerTransport, Transport
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.url import ClusterEndpoint, SentinelEndpoint


def transport_to(config: Config) -> Transport:
    """The way to what the URL names; nothing is connected before the first exchange.

    Raises:
        ConfigError: The password file cannot be read.
    """
    location = config.url
    if isinstance(location, SentinelEndpoint):
        return SentinelTransport(config, location)
    if isinstance(location, ClusterEndpoint):
        return ClusterTransport(config, location)
    return ServerTransport(config)


def replica_to(config: Config, *, clock: Clock = SYSTEM) -> Transport:
    """The way to a replica of what the URL names, to read from; a single server is itself asked.

    Args:
        clock: Says when it is looked for a replica again while there is none.

    Raises:
        ConfigError: It is a cluster, or the password file cannot be read.
    """
    location = config.url
    if isinstance(location, ClusterEndpoint):
        raise ConfigError(
            "reading from a replica",
            found="the URL names a cluster, whose replicas are not equally far behind: one version "
            "of all partitions could not be promised",
            advice="Leave 'replica' out. It is for a single server and for Sentinel.",
        )
    if isinstance(location, SentinelEndpoint):
        return ReplicaTransport(config, location, clock=clock)
    return ServerTransport(config)
