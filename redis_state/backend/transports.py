"""Chooses the transport for a URL."""

from __future__ import annotations

from redis_state.backend.cluster import ClusterTransport
from redis_state.backend.sentinel import ReplicaTransport, SentinelTransport
from redis_state.backend.transport import ServerTransport, Transport
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config
from redis_state.errors import ConfigError
from redis_state.url import ClusterEndpoint, SentinelEndpoint


def transport_to(config: Config) -> Transport:
    """Returns the transport for the config's URL; connects with the first exchange.

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
    """Returns a read-only transport to a replica; for a single server, to the server itself.

    Args:
        clock: Limits how often a missing replica is searched again.

    Raises:
        ConfigError: The URL is a cluster, or the password file cannot be read.
    """
    location = config.url
    if isinstance(location, ClusterEndpoint):
        raise ConfigError(
            "reading from a replica",
            found=(
                "the URL names a cluster, whose replicas lag differently: one version of all "
                "partitions could not be guaranteed"
            ),
            advice="Leave 'replica' out. It is for a single server and for Sentinel.",
        )
    if isinstance(location, SentinelEndpoint):
        return ReplicaTransport(config, location, clock=clock)
    return ServerTransport(config)
