"""Reading a Redis URL. No message of this module repeats the URL: it could hold a password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from redis_state.errors import ConfigError

DEFAULT_PORT = 6379
_SUPPORTED = {"redis": False, "rediss": True}
_LATER = ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix")
_EXAMPLE = "Give a URL such as redis://localhost:6379/0."
_DATABASE = re.compile(r"/?|/(0|[1-9][0-9]{0,4})")
_HOST = re.compile(r"[0-9A-Za-z_.-]+|[0-9A-Fa-f:.]+(%[0-9A-Za-z_.-]+)?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is: host without brackets, port, database number, whether TLS is spoken."""

    host: str
    port: int
    database: int
    tls: bool

    @property
    def url(self) -> str:
        """The URL in full, with port and database."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


def _refuse(found: str, advice: str = _EXAMPLE) -> ConfigError:
    return ConfigError("option 'url'", found=found, advice=advice)


def parse_url(text: str) -> Endpoint:
    """Read ``redis://host[:port][/database]`` or ``rediss://…``.

    Raises:
        ConfigError: Anything else, with the part that is wrong.
    """
    scheme, separator, _ = text.partition("://")
    # The scheme too is named only if it is one we know: without "://" it could be anything.
    if not separator and scheme.startswith("unix:"):
        scheme = "unix"
    if scheme.lower() in _LATER:
        raise _refuse(
            f"{scheme.lower()}:// is not supported by the JVM adapter of this release",
            "Use redis:// or rediss:// with the address of one server.",
        )
    if not separator or scheme.lower() not in _SUPPORTED:
        raise _refuse("it does not begin with redis:// or rediss://")
    if "@" in text:
        raise _refuse(
            "it holds a user name or password, which Spark would show in its UI and event log",
            "Take the part before '@' out; give 'username' and 'password' or 'passwordFile'.",
        )
    if re.search(r"[\s\x00-\x1f\x7f\\]", text):
        raise _refuse("it holds a blank, a control character or a backslash")
    return _read(text, tls=_SUPPORTED[scheme.lower()])


def _read(text: str, *, tls: bool) -> Endpoint:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The cause is dropped on purpose: its message repeats a part of the URL.
        raise _refuse("its host is malformed or its port is not a number up to 65535") from None
    if "?" in text or "#" in text:
        raise _refuse(
            "it has a part behind '?' or '#'", "Take it out; settings are options of their own."
        )
    if not host or not _HOST.fullmatch(host):
        raise _refuse("it has no host, or one with characters that no host name has")
    if port == 0 or parts.netloc.endswith(":"):
        raise _refuse("its port is missing behind ':' or is 0")
    if not _DATABASE.fullmatch(parts.path):
        raise _refuse("the part behind the address is not a database number such as /0")
    database = int(parts.path[1:] or "0")
    return Endpoint(host=host, port=port or DEFAULT_PORT, database=database, tls=tls)
