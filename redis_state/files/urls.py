"""Chooses the library for an address of a file system, as Spark users write it."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis_state.errors import ConfigError

LOCAL = "file"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_S3 = ("s3a", "s3", "s3n")
_GCS = ("gs", "gcs")
_AZURE = ("abfs", "abfss", "wasb", "wasbs", "az")
_AZURE_PUBLIC = ".core.windows.net"
_HDFS = ("hdfs", "webhdfs", "swebhdfs")
_PORT_HTTP, _PORT_HTTPS, _PORT_RPC = 9870, 9871, 8020
# fsspec's defaults would wait for minutes, or forever.
_S3_LIMITS = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 4}}
_INSTEAD_OF_A_USER = ("user", "token", "kerberos")


@dataclass(frozen=True, slots=True)
class FolderAddress:
    """Address of a folder in a file system.

    Attributes:
        protocol: fsspec's name of the file system; `LOCAL` for the local one.
        path: Path for fsspec, without a trailing slash.
        address: Address for fsspec to parse itself, instead of `path`; empty for the file systems
            known here.
        package: Package to install for the file system; empty if unknown.
        bucket: Part of the path that users must create by hand; empty if there is no such part.
        defaults: Options of fsspec from the address, or that a checkpoint needs.
        guesses: Names of those that fsspec's own configuration may set otherwise.
        roots: Each `scheme://authority`, or `scheme:`, that Hadoop may use for the file system.
        renames: True if a rename of a file is atomic.
    """

    protocol: str
    path: str
    address: str = ""
    package: str = ""
    bucket: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    guesses: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    renames: bool = False

    @property
    def has_authority(self) -> bool:
        """True if the address names a bucket or a host."""
        return "//" in self.roots[0]


def place_of(address: str) -> FolderAddress:
    """Parses an address.

    Raises:
        ConfigError: The address names no bucket, container or host, or has a password.
    """
    _refuse_password(address)
    scheme = _SCHEME.match(address)
    if scheme is None or scheme[1].lower() in (LOCAL, "local"):
        path = address[scheme.end() :] if scheme else address
        return FolderAddress(LOCAL, path.removeprefix("//") if scheme else path)
    name = scheme[1].lower()
    parts = urlsplit(address, allow_fragments=False)
    # A question mark and a hash are part of a path here.
    path = address.split("://", 1)[-1].partition("/")[2].strip("/")
    if not parts.netloc and name in (*_S3, *_GCS, *_AZURE, *_HDFS):
        raise ConfigError(
            f"reading the address {address}",
            found="it names no bucket, container or host",
            advice=(
                "Write the address as in the query, for example s3a://bucket/flights, "
                "abfss://container@account.dfs.core.windows.net/flights or "
                "hdfs://namenode:8020/flights."
            ),
        )
    if name in _S3:
        return _bucket("s3", "s3fs", parts.netloc, path, _S3, {"config_kwargs": _S3_LIMITS})
    if name in _GCS:
        return _bucket("gcs", "gcsfs", parts.netloc, path, _GCS[:1], {})
    if name in _AZURE:
        return _azure(parts.netloc, path)
    if name in _HDFS:
        return _hdfs(name, parts.hostname or "", parts.port, path)
    root = f"{name}://{parts.netloc}" if parts.netloc else f"{name}:"
    whole = f"{name}://{address[scheme.end() :].removeprefix('//')}"
    return FolderAddress(name, "", whole.rstrip("/"), roots=(root,))


def _refuse_password(address: str) -> None:
    """Refuses credentials in an address, which Redis would store and messages would quote."""
    authority, _, path = address.partition("://")[2].partition("/")
    user, is_there, _ = authority.rpartition("@")
    if is_there:
        has_password = bool(user.partition(":")[2])
    else:
        # A secret may have slashes: then a part of it is where a port would be.
        port = authority.partition(":")[2]
        has_password = "[" not in authority and not port.isdecimal() and port != "" and "@" in path
    if has_password:
        raise ConfigError(
            "reading an address of a folder",
            found="it has a password before its host or bucket, which is not quoted here",
            advice="Leave it out. Give credentials by the environment or the files of the driver, "
            "or by --storage-options.",
        )


def _bucket(
    protocol: str,
    package: str,
    bucket: str,
    path: str,
    schemes: tuple[str, ...],
    defaults: Mapping[str, Any],
) -> FolderAddress:
    roots = tuple(f"{scheme}://{bucket}" for scheme in schemes)
    whole = f"{bucket}/{path}".rstrip("/")
    return FolderAddress(protocol, whole, "", package, bucket, defaults, roots=roots)


def _azure(authority: str, path: str) -> FolderAddress:
    container, _, host = authority.rpartition("@")
    if not container:
        container, host = host, ""
    # No checkpoint is public; without this, adlfs tries anonymous access first.
    defaults: dict[str, Any] = {"anon": False}
    if host:
        defaults["account_name"] = host.split(".", 1)[0]
        if not host.endswith(_AZURE_PUBLIC):
            # An account has a dfs and a blob host name; adlfs uses the blob one.
            defaults["account_host"] = host.replace(".dfs.", ".blob.", 1)
    roots = tuple(f"{scheme}://{authority}" for scheme in _AZURE[:4])
    whole = f"{container}/{path}".rstrip("/")
    return FolderAddress("abfs", whole, "", "adlfs", container, defaults, roots=roots)


def _hdfs(scheme: str, host: str, port: int | None, path: str) -> FolderAddress:
    """Returns the address of HDFS over HTTP, which needs no JVM and no Hadoop libraries here."""
    https = scheme == "swebhdfs"
    defaults: dict[str, Any] = {"host": host, "port": _PORT_HTTPS if https else _PORT_HTTP}
    defaults["use_https"] = https
    roots = [f"hdfs://{host}", f"hdfs://{host}:{_PORT_RPC}"]
    if scheme == "hdfs" and port is not None:
        # The port in the address is of Hadoop's RPC protocol, not of HTTP.
        roots = [f"hdfs://{host}:{port}", *(roots[:1] if port == _PORT_RPC else ())]
    elif port is not None:
        defaults["port"] = port
        roots.append(f"{scheme}://{host}:{port}")
    return FolderAddress(
        "webhdfs",
        f"/{path}",
        package="requests",
        defaults=defaults,
        guesses=() if scheme != "hdfs" and port is not None else ("port",),
        roots=tuple(roots),
        renames=True,
    )


def options_of(
    place: FolderAddress, given: Mapping[str, Any], configured: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Merges the options for fsspec; `given` wins over the address.

    Args:
        configured: What fsspec's environment and files set for the file system.

    The default user name of HDFS is Hadoop's: `HADOOP_USER_NAME`, or the user of the process.
    """
    guessed = {name: value for name, value in (configured or {}).items() if name in place.guesses}
    options = {**place.defaults, **guessed, **given}
    if place.protocol == "webhdfs" and not any(options.get(one) for one in _INSTEAD_OF_A_USER):
        options["user"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    # Other processes change the files, so an earlier listing is not reliable.
    return {**options, "use_listings_cache": False, "skip_instance_cache": True}
