"""Types of the options as keyword arguments, for editors and type checkers.

`tests/unit/test_option_types.py` compares the names and types with `options.json`. At run time
every spelling of an option is accepted, and an unknown name is an error with the nearest name.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of docs/configuration.md except the URL; ``None`` means not given.

    A duration is a text such as ``"60s"``, seconds, or a `timedelta`. A size is a text such as
    ``"2g"``.
    """

    username: str | None
    password: str | None
    password_file: str | Path | None
    tls_ca_file: str | Path | None
    tls_cert_file: str | Path | None
    tls_key_file: str | Path | None
    tls_verify_hostname: bool | None
    key_prefix: str | None
    versions_to_retain: int | None
    ephemeral: bool | None
    adopt: bool | None
    real_time: bool | None
    rescale_to: int | None
    durability: str | None
    signing_key_file: str | Path | None
    local_memory: str | None
    deadline: str | float | timedelta | None
    on_path_change: Literal["fail", "adopt"] | None
    copy_every_batches: int | None
    keep_every: str | float | timedelta | None
    keep_for: str | float | timedelta | None
    history: Literal["redis", "files"] | None
    places_folder: str | None
    places_grace: str | float | timedelta | None
    places_delete: bool | None
    redis_memory: str | None
    local_disk: str | None
    local_disk_folder: str | None
    read_parallel: int | None
    state_ttl: str | float | timedelta | None
    publish_every: str | float | timedelta | None
    state_bytes_max: str | None
    prefix_bytes_max: str | None
    socket_timeout: str | float | timedelta | None
    connections_max: int | None
