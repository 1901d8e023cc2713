"""Files with a password or a signing key."""

from __future__ import annotations

import re
from pathlib import Path

from redis_state.errors import ConfigError
from redis_state.format.signature import KEY_BYTES_MIN, BlockSigner


def read_password_file(path: str) -> str:
    """Returns the password in a file.

    Raises:
        ConfigError: The file cannot be read or is empty.
    """
    what = f"reading the password file {path}"
    try:
        text = re.sub(r"\r?\n\Z", "", Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        advice = "Give in 'passwordFile' a UTF-8 file that this user may read."
        raise ConfigError(what, found=_why_unread(error), advice=advice) from error
    if not text:
        advice = "Write the password into the file, or leave the option out."
        raise ConfigError(what, found="it is empty", advice=advice)
    return text


def read_signing_key_file(path: str) -> BlockSigner:
    """Returns the signer with the key in a file.

    Raises:
        ConfigError: The file cannot be read, or is too short.
    """
    try:
        key = re.sub(rb"\r?\n\Z", b"", Path(path).read_bytes())
    except OSError as error:
        raise _no_key(f"{path}: {_why_unread(error)}") from error
    if len(key) < KEY_BYTES_MIN:
        raise _no_key(f"{path}: it has {len(key)} bytes")
    return BlockSigner(key)


def _why_unread(error: Exception) -> str:
    known = {
        FileNotFoundError: "there is no such file",
        IsADirectoryError: "it is a folder",
        PermissionError: "this user may not read it",
        UnicodeDecodeError: "it is not UTF-8",
    }
    return known.get(type(error), type(error).__name__)


def _no_key(found: str) -> ConfigError:
    return ConfigError(
        "reading the signing key",
        found=found,
        advice=(
            f"Give in 'signingKeyFile' a file of at least {KEY_BYTES_MIN} bytes that this user may "
            "read, such as `openssl rand -hex 32` makes."
        ),
    )
