"""What a server must be like to be trusted with state."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, Kind

VERSION_MIN = (6, 2)
_LOG = logging.getLogger(__name__)
_ATTEMPTED = "checking the server"


def check_server(client: Client) -> None:
    """Refuse a server that would lose state or is too old; once for each run.

    Raises:
        ConfigError: What the server would have to be like.
        UnavailableError: The deadline passed.
    """
    try:
        (info,) = client.call(_ATTEMPTED, [("INFO",)])
    except ConfigError as error:
        if error.kind is not Kind.PERMISSION or "NOPERM" not in str(error):
            raise
        _LOG.warning("%s: its settings could not be checked: %s", client.url, error)
        return
    check_info(client.url, info)


def check_info(url: str, info: Mapping[str, object]) -> None:
    """Judge what a server says of itself.

    Raises:
        ConfigError: It is too old, a replica, or may evict keys.
    """
    version = str(info.get("redis_version", "0.0"))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < VERSION_MIN:
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} runs version {version}",
            advice="Redis 6.2 or newer, or Valkey, is needed.",
        )
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} has maxmemory-policy {policy} and would evict state",
            advice="Set maxmemory-policy noeviction there.",
        )
    if policy.startswith("volatile"):
        _LOG.warning("%s has maxmemory-policy %s: commits may be repeated", url, policy)
    if info.get("role") == "slave":
        raise ConfigError(
            _ATTEMPTED,
            found=f"{url} is a replica, which cannot be written",
            advice="Name the master.",
        )
