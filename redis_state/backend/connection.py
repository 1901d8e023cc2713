"""Connections to one server, and the errors for connections that fail."""

from __future__ import annotations

import inspect
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_state.backend.replies import ends_connection, is_of_database, wants_no_password
from redis_state.config import Config
from redis_state.errors import ConfigError, InternalError, Kind, RedisStateError
from redis_state.url import Address, Endpoint, Location, SocketEndpoint

_CAUSES_MAX = 16
_TICKETS_MAX = 8
_LAST_WORDS_BYTES = 1 << 16
# OpenSSL's reasons when the peer answers its greeting without TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def new_connections(
    config: Config, address: Address | None = None, *, anonymous: bool = False
) -> redis.Redis:
    """Creates a pool of connections that return bytes and never repeat a command.

    A password file is read again for each connection, so that the password can be rotated.

    Args:
        address: ``None`` means the address in the URL.
        anonymous: Connects without a login, and without choosing a database.

    Raises:
        ConfigError: The password file cannot be read.
    """
    options: dict[str, Any] = _nameless() | _place(config.url, address)
    if not anonymous:
        options |= {"db": config.url.database} | _login(config)
    if config.url.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": config.tls_ca_file,
            "ssl_certfile": config.tls_cert_file,
            "ssl_keyfile": config.tls_key_file,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": config.tls_verify_hostname,
        }
    client = redis.Redis(
        socket_timeout=config.socket_timeout / 1000,
        socket_connect_timeout=config.socket_timeout / 1000,
        max_connections=config.connections_max,
        decode_responses=False,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        **options,
    )
    pool = client.connection_pool
    pool.connection_class = _CONNECTIONS.get(pool.connection_class, pool.connection_class)
    return client


def _login(config: Config) -> dict[str, Any]:
    if config.password_file is None:
        return {"username": config.username, "password": config.password}
    config.read_password()
    return {"credential_provider": _PasswordFile(config)}


class PasswordFileError(redis.ConnectionError):
    """The password file can no longer be read; the cause has the reason."""


class _PasswordFile(redis.CredentialProvider):
    """User name, and the present password in the file."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Reads the password for a new connection.

        Raises:
            PasswordFileError: The file cannot be read. It is one of redis-py's errors, because
                redis-py drops the unauthenticated connection only for its own errors.
        """
        try:
            password = self._config.read_password() or ""
        except ConfigError as error:
            raise PasswordFileError(str(error)) from error
        user = self._config.username
        return (password,) if user is None else (user, password)


def let_go(client: redis.Redis) -> None:
    """Closes a forked process's copies of its parent's connections, which the parent still uses."""
    # The finalizer would take the pool's lock, which a thread of the parent may have held at the
    # fork.
    client.auto_close_connection_pool = False
    pool = client.connection_pool
    for held in ("_available_connections", "_in_use_connections"):
        for connection in list(getattr(pool, held, ())):
            with suppress(Exception):
                connection.disconnect()


class _LastWords:
    """Reads the reason why the server closed a connection while a request was being sent.

    A server with too many connections, or with a request above its limits, sends the reason before
    it closes. redis-py then fails to send, and closes the connection without reading the reason.
    """

    _sock: Any
    _sends = False
    _said = b""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Overrides redis-py's method.

        Raises:
            redis.ResponseError: The server's reason for closing the connection.
        """
        sends, self._sends, self._said = self._sends, True, b""
        try:
            super().send_packed_command(command, check_health)  # type: ignore[misc]
        except redis.ConnectionError as error:
            line = (
                self._said.removesuffix(b"\r\n").rpartition(b"\r\n")[2].decode("ascii", "replace")
            )
            if ends_connection(line.removeprefix("-")):
                raise redis.ResponseError(line.removeprefix("-").removeprefix("ERR ")) from error
            raise
        finally:
            self._sends = sends

    def disconnect(self, *args: object) -> None:
        """Overrides redis-py's method."""
        if self._sends and self._sock is not None:
            with suppress(OSError, ValueError):
                self._sock.settimeout(0)
                self._said = self._sock.recv(_LAST_WORDS_BYTES)
        super().disconnect(*args)  # type: ignore[misc]


class _FirstWords(_LastWords):
    """Reads the reason why the server refuses a connection before anything is sent.

    redis-py takes such a reply for the rest of another request, and only reports that the
    connection is not ready.
    """

    def can_read(self, timeout: float = 0) -> bool:
        """Returns whether data is waiting; the pool then drops the connection.

        Raises:
            redis.ResponseError: The server's reason for refusing the connection.
        """
        if not super().can_read(timeout):  # type: ignore[misc]
            return False
        with suppress(redis.TimeoutError):
            try:
                self.read_response()  # type: ignore[attr-defined]
            except (redis.ConnectionError, redis.ResponseError) as error:
                if ends_connection(str(error)):
                    self.disconnect()
                    raise redis.ResponseError(str(error)) from error
        return True


class _PlainConnection(_FirstWords, redis.Connection):
    """A TCP connection."""


class _SocketConnection(_FirstWords, redis.UnixDomainSocketConnection):
    """A connection by a unix socket."""


class _TlsConnection(_LastWords, redis.SSLConnection):
    """A TLS connection that survives the session tickets of its server.

    Before each use redis-py checks whether data is waiting, since 8.1 at the raw socket. Session
    tickets (RFC 8446, section 4.6.1) arrive after the handshake, and stay unread until the first
    reply.
    On a new connection without a login, redis-py took them for the reply to another request.
    """

    def can_read(self, timeout: float = 0) -> bool:
        """Returns whether more than tickets is waiting; the pool then drops the connection."""
        for _ in range(_TICKETS_MAX):
            if not super().can_read(timeout):
                return False
            if self._takes_data():
                return True
        return True

    def _takes_data(self) -> bool:
        connected: Any = self._sock
        connected.settimeout(0)
        try:
            connected.recv(1)
        except ssl.SSLWantReadError:
            return False
        finally:
            connected.settimeout(self.socket_timeout)
        return True


_CONNECTIONS: dict[type, type] = {
    redis.Connection: _PlainConnection,
    redis.UnixDomainSocketConnection: _SocketConnection,
    redis.SSLConnection: _TlsConnection,
}


def _place(location: Location, address: Address | None) -> dict[str, Any]:
    if isinstance(location, SocketEndpoint):
        return {"unix_socket_path": location.path}
    if address is None:
        if not isinstance(location, Endpoint):
            raise InternalError("connecting", found="the URL names no single server")
        address = Address(location.host, location.port)
    return {"host": address.host, "port": address.port}


def _nameless() -> dict[str, Any]:
    """Stops redis-py from sending its own name, which takes two more round trips, and a right."""
    if "driver_info" in inspect.signature(redis.Redis.__init__).parameters:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None}


def refused(attempted: str, message: str, config: Config) -> RedisStateError:
    """Returns the error for a refused login."""
    given = config.password is not None or config.password_file is not None
    why = (
        "user name or password is wrong"
        if given
        else "the server requires a password, and none was given"
    )
    if wants_no_password(message):
        why = "the server has no password, and one was given"
    return ConfigError(
        attempted,
        found=f"{config.url.url} refuses the login: {why} ('{message[:200].rstrip('.')}')",
        kind=Kind.PERMISSION,
        advice="Give the right 'username', and 'password' or 'passwordFile'; on the command line "
        "--username, and --password-file or the variable REDIS_STATE_PASSWORD.",
    )


def no_redis(attempted: str, config: Config) -> RedisStateError:
    """Returns the error for a server that does not speak Redis's protocol."""
    return ConfigError(
        attempted,
        found=(
            f"the program that listens at {config.url.url} is not Redis: it does not speak the "
            "Redis protocol"
        ),
        advice="Check host and port of the URL; if the server speaks TLS, use a rediss:// URL.",
    )


def final_error(attempted: str, error: Exception, config: Config) -> RedisStateError | None:
    """Returns the error for a connection that no repetition can make; ``None`` if one may."""
    if isinstance(error, PasswordFileError) and isinstance(error.__cause__, ConfigError):
        return error.__cause__
    if isinstance(error, redis.AuthenticationError):
        return refused(attempted, str(error), config)
    if is_of_database(str(error)):
        return ConfigError(
            attempted,
            found=f"{config.url.url}: the server has no database {config.url.database}",
            advice="Give a lower database number at the end of the URL, such as /0.",
        )
    if config.url.tls:
        return next(
            filter(None, (_tls_error(attempted, one, config) for one in _causes(error))), None
        )
    return None


def _tls_error(attempted: str, cause: BaseException, config: Config) -> RedisStateError | None:
    if isinstance(cause, OSError) and (unreadable := _unreadable(config)):
        return ConfigError(
            attempted,
            found=f"{unreadable} is not a file that this user may read",
            advice="Check 'tls.caFile', 'tls.certFile' and 'tls.keyFile'.",
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigError(
            attempted,
            found=f"the certificate of {config.url.url} is not accepted ({cause.verify_message})",
            advice="Give the certificate authority that signed it in 'tls.caFile', and use a "
            "host name that the certificate names.",
        )
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, _CUT_OFF):
        return None
    if cause.reason in _NOT_TLS:
        return ConfigError(
            attempted,
            found=f"{config.url.url} does not speak TLS on this port",
            advice="Use a redis:// URL, or the server's TLS port.",
        )
    return ConfigError(
        attempted,
        found=f"the TLS handshake failed ({cause.reason or type(cause).__name__})",
        advice="Check the files given in the 'tls' options, and what the server requires.",
    )


def _unreadable(config: Config) -> str | None:
    """Returns the first file of certificates or keys that cannot be read."""
    files = (config.tls_ca_file, config.tls_cert_file, config.tls_key_file)
    for one in files:
        if one is not None and (Path(one).is_dir() or not os.access(one, os.R_OK)):
            return one
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if at is None:
            return
        yield at
        at = at.__cause__ or at.__context__


def in_words(error: Exception, config: Config) -> str:
    """Describes why a connection gave no answer, with the name of the exception."""
    causes = list(_causes(error))
    name = type(error).__name__
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "nothing listens on that port (connection refused)"
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        return "there is no such socket"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "the host name is not known"
    if any(isinstance(cause, (TimeoutError, redis.TimeoutError)) for cause in causes):
        return f"no reply came within {config.socket_timeout} ms ({name})"
    if is_hung_up(error):
        return f"the server closed the connection ({name})"
    return name


def is_hung_up(error: BaseException) -> bool:
    """Returns whether the server closed an established connection."""
    text = str(error).lower()
    return any(part in text for part in ("closed by server", "reset by peer", "broken pipe"))


def hint(error: Exception, config: Config, *, was_answered: bool) -> str:
    """Returns a hint at another cause for a missing answer; empty without one.

    Args:
        was_answered: True if a Redis has answered at this address before.
    """
    if was_answered:
        return ""
    if config.url.tls:
        # A server without TLS waits silently for the end of a line in the TLS greeting.
        silent = isinstance(error, redis.TimeoutError)
        return "If the server speaks no TLS, use a redis:// URL." if silent else ""
    return "If the server speaks TLS only, use a rediss:// URL." if is_hung_up(error) else ""
