"""Which library speaks with the file system of an address, as Spark users write it."""

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
# What fsspec's own defaults leave for minutes, or for ever.
_S3_LIMITS = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 4}}
_INSTEAD_OF_A_USER = ("user", "token", "kerberos")


@dataclass(frozen=True, slots=True)
class FolderAddress:
    """A folder of a file system.

    Attributes:
        protocol: Its name at fsspec; `LOCAL` for the local one.
        path: As fsspec takes it, without a slash at the end.
        address: What fsspec has to take apart by itself instead; empty of those known here.
        package: What has to be installed for it; empty if that is not known.
        bucket: The part of the path that has to be made by hand; empty where there is none.
        defaults: Options of fsspec that the address gives, or that a checkpoint asks for.
        roots: Each `scheme://authority`, or `scheme:`, by which Hadoop may know it.
        renames: Whether its rename is one step, for files.
    """

    protocol: str
    path: str
    address: str = ""
    package: str = ""
    bucket: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    renames: bool = False

    @property
    def has_authority(self) -> bool:
        """Whether an address of it names a bucket or a host."""
        return "//" in self.roots[0]


def place_of(address: str) -> FolderAddress:
    """Take an address apart.

    Raises:
        ConfigError: It names no bucket, container or host.
    """
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
            advice="Write it as the query has it, for example s3a://bucket/flights, "
            "abfss://container@account.dfs.core.windows.net/flights or "
            "hdfs://namenode:8020/flights.",
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
    return FolderAddress(protocol, whole, "", package, bucket, defaults, roots)


def _azure(authority: str, path: str) -> FolderAddress:
    container, _, host = authority.rpartition("@")
    if not container:
        container, host = host, ""
    # No checkpoint can be read by everybody; adlfs would try that first.
    defaults: dict[str, Any] = {"anon": False}
    if host:
        defaults["account_name"] = host.split(".", 1)[0]
        if not host.endswith(_AZURE_PUBLIC):
            # adlfs speaks with the other of the two names that an account has.
            defaults["account_host"] = host.replace(".dfs.", ".blob.", 1)
    roots = tuple(f"{scheme}://{authority}" for scheme in _AZURE[:4])
    whole = f"{container}/{path}".rstrip("/")
    return FolderAddress("abfs", whole, "", "adlfs", container, defaults, roots)


def _hdfs(scheme: str, host: str, port: int | None, path: str) -> FolderAddress:
    """HDFS over HTTP, which needs neither a JVM nor Hadoop's own libraries on this machine."""
    https = scheme == "swebhdfs"
    defaults: dict[str, Any] = {"host": host, "port": _PORT_HTTPS if https else _PORT_HTTP}
    defaults["use_https"] = https
    roots = [f"hdfs://{host}", f"hdfs://{host}:{_PORT_RPC}"]
    if scheme == "hdfs" and port is not None:
        # The port of the address is the one that Hadoop's own protocol has.
        roots = [f"hdfs://{host}:{port}", *(roots[:1] if port == _PORT_RPC else ())]
    elif port is not None:
        defaults["port"] = port
        roots.append(f"{scheme}://{host}:{port}")
    return FolderAddress(
        "webhdfs",
        f"/{path}",
        package="requests",
        defaults=defaults,
        roots=tuple(roots),
        renames=True,
    )


def options_of(place: FolderAddress, given: Mapping[str, Any]) -> dict[str, Any]:
    """What fsspec is opened with: `given` wins over the address.

    A user name of HDFS is the one that Hadoop takes, `HADOOP_USER_NAME` or that of the process.
    """
    options = {**place.defaults, **given}
    if place.protocol == "webhdfs" and not any(options.get(one) for one in _INSTEAD_OF_A_USER):
        options["user"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    # Another process changes the files: what was listed before counts for nothing.
    return {**options, "use_listings_cache": False, "skip_instance_cache": True}
