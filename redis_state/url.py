"""Parses a Redis URL. No message of this module repeats the URL, which could contain a password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from redis_state.errors import ConfigError

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
_SCHEMES = (
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "unix",
)
_EXAMPLE = "Give a URL such as redis://localhost:6379/0."
_SENTINEL_EXAMPLE = "Give a URL such as redis+sentinel://host:26379/mymaster/0."
_SOCKET_EXAMPLE = "Give a URL such as unix:///run/redis.sock or unix:///run/redis.sock?db=1."
_ADDRESSES_MAX = 64
_DATABASE = re.compile(r"0|[1-9][0-9]{0,4}")
_HOST = re.compile(r"[0-9A-Za-z_.-]+|[0-9A-Fa-f:.]+(%[0-9A-Za-z_.-]+)?")
_SERVICE = re.compile(r"[0-9A-Za-z_.-]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server: host without brackets, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: host without brackets, port, database number, and true for TLS."""

    host: str
    port: int
    database: int
    tls: bool

    @property
    def url(self) -> str:
        """The full URL, with port and database."""
        return f"{_secure(self.tls)}://{Address(self.host, self.port)}/{self.database}"


@dataclass(frozen=True, slots=True)
class SentinelEndpoint:
    """Sentinels, and their name for the master; TLS applies to both."""

    sentinels: tuple[Address, ...]
    service: str
    database: int
    tls: bool

    @property
    def url(self) -> str:
        """The full URL, with ports and database."""
        nodes = ",".join(map(str, self.sentinels))
        return f"{_secure(self.tls)}+sentinel://{nodes}/{self.service}/{self.database}"


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Nodes of a cluster; any node knows the others."""

    nodes: tuple[Address, ...]
    tls: bool

    @property
    def database(self) -> int:
        """Always 0: a cluster has no other database."""
        return 0

    @property
    def url(self) -> str:
        """The full URL, with ports and database."""
        return f"{_secure(self.tls)}+cluster://{','.join(map(str, self.nodes))}/0"


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """A unix socket of this machine."""

    path: str
    database: int

    @property
    def tls(self) -> bool:
        """Always False: nothing leaves the machine."""
        return False

    @property
    def url(self) -> str:
        """The full URL, with the database only if it is not 0."""
        return f"unix://{self.path}" + (f"?db={self.database}" if self.database else "")


Location = Endpoint | SentinelEndpoint | ClusterEndpoint | SocketEndpoint
"""Location that a URL describes."""


def _secure(tls: bool) -> str:
    return "rediss" if tls else "redis"


def _refuse(found: str, advice: str = _EXAMPLE) -> ConfigError:
    return ConfigError("option 'url'", found=found, advice=advice)


def parse_url(text: str) -> Location:
    """Parses a URL in one of four forms; all but the last also accept ``rediss`` for TLS.

    - ``redis://host[:port][/database]``: one server
    - ``redis+sentinel://host[:port][,host[:port]…]/service[/database]``
    - ``redis+cluster://host[:port][,host[:port]…]``
    - ``unix:///path[?db=database]``

    Raises:
        ConfigError: The URL has another form; the message names the wrong part.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEMES:
        raise _refuse(
            "it does not begin with redis:// or rediss://, redis+sentinel://, redis+cluster:// "
            "or unix://"
        )
    if "@" in text:
        raise _refuse(
            "it holds a user name or password, which Spark would show in its UI and event log",
            "Remove the part before '@'; give 'username' and 'password' or 'passwordFile'.",
        )
    if re.search(r"[\s\x00-\x1f\x7f\\]", text):
        raise _refuse("it holds a blank, a control character or a backslash")
    if scheme == "unix":
        return _socket(rest)
    if "?" in text or "#" in text:
        raise _refuse("it has a part after '?' or '#'", "Remove it; give settings as options.")
    nodes, _, path = rest.partition("/")
    tls = scheme.startswith("rediss")
    if scheme.endswith("+sentinel"):
        return _sentinel(_addresses(nodes, DEFAULT_SENTINEL_PORT), path, tls=tls)
    if scheme.endswith("+cluster"):
        found = _addresses(nodes, DEFAULT_PORT)
        if _database(path) != 0:
            raise _refuse("a cluster has only database 0")
        return ClusterEndpoint(found, tls=tls)
    one = _address(nodes, DEFAULT_PORT)
    return Endpoint(one.host, one.port, _database(path), tls=tls)


def _socket(rest: str) -> SocketEndpoint:
    path, question, query = rest.partition("?")
    if not path.startswith("/") or path.endswith("/") or "#" in rest:
        raise _refuse(
            "the part after unix:// is not the absolute path of a socket", _SOCKET_EXAMPLE
        )
    name, _, number = query.partition("=")
    if question and (name != "db" or not _DATABASE.fullmatch(number)):
        raise _refuse("the part after '?' is not a database such as db=0", _SOCKET_EXAMPLE)
    return SocketEndpoint(path, int(number or "0"))


def _sentinel(sentinels: tuple[Address, ...], path: str, *, tls: bool) -> SentinelEndpoint:
    service, _, database = path.partition("/")
    if not _SERVICE.fullmatch(service):
        raise _refuse("it does not name the master that the sentinels watch", _SENTINEL_EXAMPLE)
    return SentinelEndpoint(sentinels, service, _database(database), tls=tls)


def _addresses(text: str, port: int) -> tuple[Address, ...]:
    parts = text.split(",")
    if len(parts) > _ADDRESSES_MAX:
        raise _refuse(f"it names more than {_ADDRESSES_MAX} servers")
    return tuple(_address(part, port) for part in parts)


def _address(text: str, port_default: int) -> Address:
    try:
        parts = urlsplit(f"redis://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        # The cause is dropped on purpose: its message repeats a part of the URL.
        raise _refuse("its host is malformed or its port is not a number up to 65535") from None
    if not host or not _HOST.fullmatch(host):
        raise _refuse("its host is missing, or has characters that a host name cannot have")
    if port == 0 or parts.netloc.endswith(":"):
        raise _refuse("its port is missing after ':' or is 0")
    return Address(host, port or port_default)


def _database(path: str) -> int:
    if path and not _DATABASE.fullmatch(path):
        raise _refuse("the part after the address is not a database number such as /0")
    return int(path or "0")
