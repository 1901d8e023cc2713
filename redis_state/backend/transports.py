"""Chooses the transport that a URL describes."""

from __future__ import annotations

from redis_state.backend.cluster import ClusterTransport
from redis_state.backend.sentinel import SentinelTransport
from redis_state.backend.transport import ServerTransport, Transport
from redis_state.config import Config
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
