"""`redis-state purge --files`: deletes the files that a purged checkpoint left."""

from __future__ import annotations

import argparse
import sys

from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import folder_of, open_folder
from redis_state.errors import ConfigError, NotFoundError
from redis_state.maintain.purged_files import PurgedFiles, delete_files, purged_files
from redis_state.places.settings import FOLDER_IN_CHECKPOINT
from redis_state.recovery.deleting import PurgedGuard
from redis_state.status import figures

_WHAT = "deleting the files of a purged checkpoint"


def list_purged_files(client: Client, tenant: str) -> None:
    """Prints the folders that purged checkpoints left, each with the time of its deletion."""
    for one in purged_files(client, tenant=tenant):
        found = (
            f"{one.files} files ({figures.size(one.bytes)})"
            if one.files
            else "files of an import, a restore or a rescale that has not ended"
        )
        print(
            f"{one.gen}: {found} in {one.folder}/{one.gen}, "
            f"needed until {figures.moment(one.due)} UTC"
        )


def delete_purged_files(
    client: Client, arguments: argparse.Namespace, gen: str, tenant: str
) -> None:
    """Deletes the files of a purged checkpoint after a confirmation.

    Raises:
        ConfigError: The question cannot be asked, or the folder cannot be read.
        NotFoundError: Nothing was purged that had files.
        ConflictError: Something may still need the files.
    """
    noted = [one for one in purged_files(client, tenant=tenant) if one.gen == gen]
    if not noted:
        raise NotFoundError(
            _WHAT,
            found=f"no purge of checkpoint {gen} has noted files in this Redis, database and key "
            "prefix",
            advice="It had none, they are deleted, or it was recalled. `redis-state places QUERY` "
            "shows the files of a checkpoint that is there.",
        )
    (found,) = noted
    folder = open_folder(arguments, found.folder) / gen

    def guard(_found: PurgedFiles) -> str:
        return _reason(arguments, found)

    def delete(*, dry_run: bool) -> str:
        deleted = delete_files(client, found, folder, tenant=tenant, guard=guard, dry_run=dry_run)
        for name in deleted.strangers:
            shown = figures.plain(name)
            print(f"warning: {shown} is not a file of ours and stays", file=sys.stderr)
        return f"{deleted.files} files ({figures.size(deleted.bytes)}) of {folder}"

    if arguments.dry_run or not arguments.yes:
        print(f"would delete {delete(dry_run=True)}")
        if arguments.dry_run:
            return
        ask(_WHAT)
    print(f"deleted {delete(dry_run=False)}")


def _reason(arguments: argparse.Namespace, found: PurgedFiles) -> str:
    """Returns why nothing may be deleted, by the checkpoint or the user's word."""
    own = f"/{FOLDER_IN_CHECKPOINT}"
    if found.folder.endswith(own):
        checkpoint = (
            folder_of(arguments)
            if arguments.checkpoint is not None
            else open_folder(arguments, found.folder.removesuffix(own))
        )
        if checkpoint.items() is not None:
            guard = PurgedGuard(checkpoint)
            if not guard.was_left(found):
                return guard(found)
            if not arguments.exclusive:
                return (
                    f"{checkpoint} goes on under another id, as after a change of its number of "
                    "partitions: a copy of this Redis may use the files. If none does, give "
                    "--exclusive"
                )
            return ""
        # A file system that is not mounted looks like a folder that was deleted.
        if not arguments.exclusive:
            return (
                f"there is no folder {checkpoint}: mount its file system; if the checkpoint was "
                "deleted with its files, give --exclusive, which removes the note of the purge"
            )
        return ""
    if not arguments.exclusive:
        return (
            f"the files are in {found.folder}, which is not in a checkpoint: a copy of this Redis "
            "may use them, too. If none does, give --exclusive"
        )
    return ""


def ask(attempted: str) -> None:
    """Asks for a confirmation.

    Raises:
        ConfigError: Standard input is not a terminal, or the answer was not yes.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            attempted,
            found="standard input is not a terminal, so the question cannot be asked",
            advice="Give --yes to go on without a question, or --dry-run to count only.",
        )
    print("Remove them? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(attempted, found="the answer was not yes", advice="Nothing was changed.")
