"""Settings of the dashboard: addresses, names and token."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from redis_state.errors import ConfigError

TOKEN_CHARACTERS_MIN = 20
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_WHAT = "starting the dashboard"


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked settings; made by `checked`.

    Attributes:
        address: Address to listen on; anything but loopback requires a token.
        port: 0 means any free one.
        names: Host names by which browsers may ask for the dashboard, besides those of loopback.
        token: Secret that opens the pages; ``None`` for pages without a login.
        interval_s: Seconds between two polls of Redis.
    """

    address: str
    port: int
    names: tuple[str, ...]
    token: str | None = field(repr=False)
    cert_file: str | None
    key_file: str | None
    interval_s: float

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the dashboard."""
        return is_loopback(self.address)

    @property
    def tls(self) -> bool:
        """True if browsers use HTTPS."""
        return self.cert_file is not None

    def answers_to(self, name: str) -> bool:
        """Returns whether a request may name this host.

        A page of another site can resolve its own name to this address, and then read the answers
        (DNS rebinding). So a name that is not listed is refused. An IP address is not a name.
        """
        if name in LOOPBACK_NAMES or name in self.names:
            return True
        return not self.loopback and _is_ip(name)


def checked(
    *,
    address: str,
    port: int,
    names: tuple[str, ...],
    token_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    interval_s: float,
) -> Settings:
    """Returns settings after checking that they fit together.

    Raises:
        ConfigError: Others could reach the pages without a token; the token cannot be read or is
            short; of a certificate and its key one is missing.
    """
    if token_file is None and not is_loopback(address):
        raise ConfigError(
            _WHAT,
            found=f"{address} can be reached from other machines, and there is no token",
            advice="Give --token-file PATH, or listen on 127.0.0.1.",
        )
    if (cert_file is None) != (key_file is None):
        raise ConfigError(
            _WHAT,
            found="only one of a certificate and its key is given",
            advice="Give both --serve-cert-file and --serve-key-file.",
        )
    if not 0 <= port <= 65535:
        raise ConfigError(
            _WHAT,
            found=f"{port} is not a port number",
            advice="Give one from 0 to 65535; 0 is any free one.",
        )
    token = None if token_file is None else _token(token_file)
    lower = tuple(name.lower() for name in names)
    return Settings(address, port, lower, token, cert_file, key_file, interval_s)


def is_loopback(address: str) -> bool:
    """Returns whether only this machine can reach an address."""
    return address == "localhost" or (_is_ip(address) and ipaddress.ip_address(address).is_loopback)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _token(path: str) -> str:
    what = f"reading the token file {path}"
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            what, found=reason or "it cannot be read", advice="Give a file that this user may read."
        ) from error
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigError(
            what,
            found=f"the token has fewer than {TOKEN_CHARACTERS_MIN} characters",
            advice="Make one: `openssl rand -hex 32 > FILE`.",
        )
    return token
