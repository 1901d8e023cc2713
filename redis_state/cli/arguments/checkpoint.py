"""Arguments that name a checkpoint folder in any file system."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from redis_state.backend.client import Client
from redis_state.cli.arguments.place import Adds
from redis_state.cli.arguments.profile import storage_options_file
from redis_state.files import Folder, folder_at, is_local, read_storage_options
from redis_state.places.reading import files_of


def add_checkpoint(parser: Adds, *, required: bool = False) -> None:
    """Adds the folder."""
    settings = {"required": True} if required else {}
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="checkpointLocation of the query: a path, or an address such as s3a://bucket/flights "
        "(needs redis-state[checkpoints] and the driver of its file system)",
        **settings,
    )


def add_storage_options(parser: Adds) -> None:
    """Adds the file of options for a file system. No argument is ever a secret."""
    parser.add_argument(
        "--storage-options",
        metavar="PATH",
        help="JSON file of options for the checkpoint's file system in fsspec, such as "
        '{"endpoint_url": "…"}; default: storage_options of the profile. Drivers also read the '
        "environment and their own files",
    )


def add_stores(parser: Adds) -> None:
    """Adds the names of Python stores that cannot be found from the query."""
    parser.add_argument(
        "stores",
        nargs="*",
        metavar="STORE",
        help=(
            "names of Python stores that no query of Spark writes, or that a query writes in "
            "foreachBatch over Spark Connect, or since an older release; all other stores of a "
            "query are found without their names"
        ),
    )


def folder_of(arguments: argparse.Namespace) -> Folder:
    """Returns the folder that the arguments name.

    Raises:
        ConfigError: A package is missing, or the address or the options are wrong.
    """
    return open_folder(arguments, arguments.checkpoint)


def open_folder(arguments: argparse.Namespace, address: str) -> Folder:
    """Returns the folder at an address, with the file system's options of the arguments.

    Raises:
        ConfigError: A package is missing, or the address or the options are wrong.
    """
    options = None if is_local(address) else storage_options_of(arguments)
    return folder_at(address, storage_options=options)


def use_storage_options(client: Client, arguments: argparse.Namespace) -> None:
    """Sets the file systems' options for files of segments, a fork's parents included.

    The options are read with the first folder that needs them.
    """
    files_of(client).storage_options = partial(storage_options_of, arguments)


def storage_options_of(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the options that the arguments or the profile give; ``None`` without any.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = arguments.storage_options or storage_options_file(arguments.url, arguments.profile)
    return None if path is None else read_storage_options(path)


def words_of(arguments: argparse.Namespace, *, gen: str | None = None) -> list[str]:
    """Returns the same arguments for another command, for advice that can be pasted."""
    given = (
        ("--checkpoint", arguments.checkpoint),
        ("--storage-options", arguments.storage_options),
        ("--gen", gen),
    )
    return [word for name, value in given if value is not None for word in (name, value)]
