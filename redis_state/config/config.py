"""Checked options of a provider, a reader or a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from redis_state.config.secret_files import read_password_file, read_signing_key_file
from redis_state.config.table import option_named, options
from redis_state.config.values import OptionValue, parse_value, to_text
from redis_state.errors import ConfigError
from redis_state.format.signature import BlockSigner
from redis_state.url import Location

VERSIONS_TO_RETAIN = 100
"""Number of versions that Python's stores retain without the option."""
EPHEMERAL_KEEP_MS = 60 * 60 * 1000
"""Expiry of the keys of an ephemeral checkpoint that is not used."""
PASSWORD_VARIABLE = "REDIS_STATE_PASSWORD"
"""Environment variable with the password for commands and the data source."""


@dataclass(frozen=True, slots=True)
class Config:
    """Checked options, one field for each row of the table; sizes in bytes, durations in ms.

    Attributes:
        versions_to_retain: ``None`` means Spark's ``minBatchesToRetain``.
        rescale_to: ``None`` keeps the number of partitions.
        local_memory: ``auto`` or bytes.
        keep_every: ``None`` means never.
        state_ttl: ``None`` means that rows do not expire.
        publish_every: ``None`` means never.
        redis_memory: ``None`` means no bound.
        local_disk: ``None`` means no copies.
        local_disk_folder: ``None`` means the one of Spark's local folders with the most space, or
            the folder for temporary files.
        state_ttls: Pairs of an operator id and its `state_ttl`, in ascending order.
        state_bytes_max: ``None`` means no limit, as for `prefix_bytes_max`.
    """

    url: Location
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify_hostname: bool = True
    key_prefix: str | None = None
    versions_to_retain: int | None = None
    ephemeral: bool = False
    adopt: bool = False
    real_time: bool = False
    rescale_to: int | None = None
    durability: str = "none"
    signing_key_file: str | None = None
    local_memory: str | int = "auto"
    deadline: int = 60_000
    on_path_change: str = "fail"
    copy_every_batches: int = 0
    keep_every: int | None = None
    keep_for: int = 604_800_000
    history: str = "redis"
    places_folder: str | None = None
    places_grace: int = 86_400_000
    places_delete: bool = False
    redis_memory: int | None = None
    local_disk: int | None = None
    local_disk_folder: str | None = None
    read_parallel: int = 64
    state_ttl: int | None = None
    publish_every: int | None = None
    state_bytes_max: int | None = None
    prefix_bytes_max: int | None = None
    socket_timeout: int = 5_000
    connections_max: int = 16
    state_ttls: tuple[tuple[int, int], ...] = ()

    def read_password(self) -> str | None:
        """Returns the password from `password` or the file; ``None`` without a password.

        Raises:
            ConfigError: The file cannot be read or is empty.
        """
        if self.password_file is None:
            return self.password
        return read_password_file(self.password_file)

    def read_signer(self) -> BlockSigner | None:
        """Returns the signer with the key in the file; ``None`` without a file.

        Raises:
            ConfigError: The file cannot be read, or is too short.
        """
        path = self.signing_key_file
        return None if path is None else read_signing_key_file(path)

    def state_ttl_of(self, operator_id: int) -> int | None:
        """Returns how long rows of an operator live, in ms; ``None`` if they do not expire."""
        return dict(self.state_ttls).get(operator_id, self.state_ttl)

    @property
    def keep_ms(self) -> int:
        """Expiry of the keys of an ephemeral checkpoint; 0 for any other."""
        return EPHEMERAL_KEEP_MS if self.ephemeral else 0

    @property
    def versions_kept(self) -> int:
        """Number of versions that Python's stores retain below the opened one."""
        kept = self.versions_to_retain
        return VERSIONS_TO_RETAIN if kept is None else kept


def normalize(values: Mapping[str, object]) -> dict[str, str]:
    """Checks options under any of their names, and returns them as text under their table names.

    A value of ``None`` means that the option is not given.

    Raises:
        ConfigError: A name is unknown or given twice, a value is wrong, or two options
            contradict each other.
    """
    return _checked(values)[0]


def parse(values: Mapping[str, object]) -> Config:
    """Checks options under any of their names, and returns them typed; see `normalize`.

    Raises:
        ConfigError: See `normalize`.
    """
    typed = _checked(values)[1]
    table = options()
    known = typed.keys() & table.keys()
    fields: dict[str, Any] = {table[name].python_name: typed[name] for name in known}
    of_operators = {name: typed[name] for name in typed.keys() - known}
    ttls = sorted((int(name.rpartition(".")[2]), ttl) for name, ttl in of_operators.items())
    config = Config(**fields, state_ttls=tuple(cast("list[tuple[int, int]]", ttls)))
    if config.local_disk_folder is not None and not Path(config.local_disk_folder).is_absolute():
        raise option_named("localDiskFolder").error(
            "it is no absolute path", "Give a path on the disk of every executor, as /mnt/disk1."
        )
    return config


def resolve(
    given: Config | str | Mapping[str, object] | None,
    url: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Config:
    """Checks options in any of their forms.

    Args:
        given: Checked options, a URL, or options by any of their names, including the URL.
        url: The server, instead of `given`.
        options: More options, by any of their names.

    Raises:
        ConfigError: See `parse`; or the server is missing, or given twice.
    """
    more = {name: value for name, value in (options or {}).items() if value is not None}
    if isinstance(given, Config):
        if url is not None or more:
            raise ConfigError(
                "reading the options",
                found=(
                    f"'{'url' if url is not None else next(iter(more))}' is given together with "
                    "options that were already checked"
                ),
                advice="Give either config=, or url= and options by their names.",
            )
        return given
    named = {"url": given} if isinstance(given, str) else dict(given or {})
    if url is not None and named.get("url", url) != url:
        raise ConfigError(
            "reading the options",
            found="config= and url= both name a server",
            advice="Give one of them.",
        )
    place = {} if url is None else {"url": url}
    return parse({**named, **place, **more})


def _checked(values: Mapping[str, object]) -> tuple[dict[str, str], dict[str, OptionValue]]:
    texts: dict[str, str] = {}
    for name, value in values.items():
        option = option_named(name)
        if value is None:
            continue
        if option.name in texts:
            raise option.error("it is given twice", "Give it once.")
        texts[option.name] = to_text(option, value)
    typed: dict[str, OptionValue] = {}
    for option in options().values():
        text = texts.get(option.name)
        if text is not None:
            typed[option.name] = parse_value(option, text)
        elif option.required:
            raise option.error("it is missing", "Give it, such as redis://localhost:6379/0.")
        elif option.default is not None:
            typed[option.name] = parse_value(option, to_text(option, option.default))
    for name in texts.keys() - options().keys():
        typed[name] = parse_value(option_named(name), texts[name])
    _check_together(texts, cast(Location, typed["url"]))
    return texts, typed


def _check_together(given: Iterable[str], endpoint: Location) -> None:
    names = set(given)
    for option in options().values():
        if option.name not in names:
            continue
        if option.excludes in names:
            raise option.error(f"'{option.excludes}' is given too", "Give one of the two.")
        if option.needs_any and not names.intersection(option.needs_any):
            needed = " or ".join(f"'{name}'" for name in option.needs_any)
            raise option.error(f"{needed} is missing", f"Give {needed} too, or omit it.")
        if option.needs_tls and not endpoint.tls:
            advice = "Use a rediss:// URL, or leave the tls options out."
            raise option.error("the URL is redis://, which has no TLS", advice)
