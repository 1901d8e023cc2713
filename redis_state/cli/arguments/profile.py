"""Server of a command: named by an argument, the environment, or a profile.

The first of these names the server: `--url` or `--profile`, `REDIS_STATE_URL`, the profile that
`REDIS_STATE_PROFILE` names. The others are ignored, so that the password file of a profile is never
used for another server. A password in the environment is used for any server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis_state import config
from redis_state.errors import ConfigError

URL_VARIABLE = "REDIS_STATE_URL"
PROFILE_VARIABLE = "REDIS_STATE_PROFILE"
STORAGE_OPTIONS = "storage_options"
"""Key of a profile that names the file of options for checkpoints' file systems."""
_FILE = Path("redis-state/profiles.toml")
_SIZE_MAX = 1 << 20
_EXAMPLE = 'Write a table a profile, such as [production] and below it url = "redis://host:6379/0".'


def profiles_path() -> Path:
    """Returns the path of the file with the profiles, which need not exist."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification requires relative paths to be ignored.
    folder = Path(given) if Path(given).is_absolute() else Path("~/.config").expanduser()
    return folder / _FILE


def server_options(url: str | None, profile: str | None) -> dict[str, Any]:
    """Returns the server, merged with the profile's other options, by their names in Python.

    Args:
        url: The argument of the command, like `profile`.

    Raises:
        ConfigError: Nothing names a server; or the profile does not exist or is wrong.
    """
    if url is not None and profile is not None:
        raise ConfigError(
            "choosing a server",
            found="--url and --profile both name a server",
            advice="Give one of them.",
        )
    if url is not None:
        return {"url": url}
    profile = _profile_meant(profile)
    if profile is None:
        found = os.environ.get(URL_VARIABLE)
        if found:
            return {"url": found}
        raise ConfigError(
            "choosing a server",
            found="no server is named",
            advice=f"Give --url, such as redis://localhost:6379/0, or --profile; or set "
            f"{URL_VARIABLE} or {PROFILE_VARIABLE}.",
        )
    return read_profile(profile)


def storage_options_file(url: str | None, profile: str | None) -> str | None:
    """Returns the file that the profile names for checkpoints' file systems, or ``None``.

    Args:
        url: The argument of the command, like `profile`.

    Raises:
        ConfigError: The profile cannot be read, or does not name a path.
    """
    name = _profile_meant(profile) if url is None else None
    if name is None:
        return None
    what, table = _table(name)
    found = table.get(STORAGE_OPTIONS)
    if found is None or isinstance(found, str):
        return found
    raise ConfigError(
        what,
        found=f"{STORAGE_OPTIONS} is not a path",
        advice=f'Put them into a JSON file, and write {STORAGE_OPTIONS} = "…" with its path.',
    )


def _profile_meant(profile: str | None) -> str | None:
    """Returns the profile that names the server, if `--url` does not."""
    if profile is None and not os.environ.get(URL_VARIABLE):
        return os.environ.get(PROFILE_VARIABLE) or None
    return profile


def read_profile(name: str) -> dict[str, Any]:
    """Returns the options of one profile.

    Raises:
        ConfigError: The file cannot be read or is not TOML, there is no such profile, or one of its
            options is unknown, a password, or not a plain value.
    """
    what, found = _table(name)
    options: dict[str, Any] = {}
    for key, value in found.items():
        if key == STORAGE_OPTIONS:
            continue
        name = _checked(what, key, value)
        if name in options:
            raise ConfigError(what, found=f"'{name}' is given twice", advice="Give it once.")
        options[name] = value
    if "url" not in options:
        raise ConfigError(what, found="it has no url", advice=_EXAMPLE)
    return options


def _table(name: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the description of the attempt, for errors, and the table of the profile."""
    path = profiles_path()
    what = f"reading profile '{name}' in {path}"
    profiles = _read(path, what)
    found = profiles.get(name)
    if not isinstance(found, Mapping):
        there = ", ".join(one for one, value in profiles.items() if isinstance(value, Mapping))
        raise ConfigError(
            what,
            found="there is no such profile",
            advice=f"Profiles there: {there or 'none'}. {_EXAMPLE}",
        )
    return what, found


def _checked(what: str, key: str, value: object) -> str:
    """Returns the name of an option in Python, after a check of its value."""
    try:
        option = config.option_named(key)
    except ConfigError as error:
        raise ConfigError(what, found=error.found, advice=error.advice) from error
    if option.secret:
        raise ConfigError(
            what,
            found=f"it holds the secret '{key}', but other users may read the file",
            advice="Remove it, put it into a file that only you can read, and write "
            'password_file = "…" with its path.',
        )
    if not isinstance(value, (str, int, float, bool)):
        raise ConfigError(
            what,
            found=f"the value of '{key}' is not a text, number or truth value",
            advice=f'Write it as {key} = "…", a number, true or false.',
        )
    return option.python_name


def _read(path: Path, what: str) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_SIZE_MAX + 1)
        text = raw.decode()
    except FileNotFoundError as error:
        raise ConfigError(what, found="there is no such file", advice=_EXAMPLE) from error
    except OSError as error:
        raise ConfigError(
            what, found=f"it cannot be read: {error.strerror}", advice="Check its rights."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(what, found="it is not UTF-8") from error
    if len(raw) > _SIZE_MAX:
        raise ConfigError(what, found="the file is larger than 1 MiB")
    return _parsed(text, what)


def _parsed(text: str, what: str) -> Mapping[str, Any]:
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError as error:
        raise ConfigError(
            what,
            found="the package tomli is missing, which Python 3.10 needs for TOML",
            advice="Run `pip install 'redis-state[cli]'`.",
        ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(what, found=f"it is not TOML: {error}", advice=_EXAMPLE) from error
