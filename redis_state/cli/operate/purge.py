"""`redis-state purge`: removes the state of a checkpoint, or brings it back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import add_checkpoint, add_storage_options, folder_of
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.help import example
from redis_state.cli.operate.purged_files import ask, delete_purged_files, list_purged_files
from redis_state.errors import ConfigError, NotFoundError
from redis_state.maintain.activity import refuse_if_used, signs_of_life
from redis_state.maintain.pinned import described_owners
from redis_state.maintain.purge import Purged, manifests_of, purge
from redis_state.maintain.purged_files import PurgedFiles
from redis_state.maintain.recall import KEPT_MS, Recalled, expire, recall
from redis_state.progress import Progress
from redis_state.recovery.marker import gen_of
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_WHAT = "purging a checkpoint"
_KEPT_HOURS = KEPT_MS // 3_600_000
_Result = TypeVar("_Result")


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "purge",
        help="remove every key of a checkpoint, or bring a purged one back",
        description=(
            "Remove the state of a query that will not run again: every key of its checkpoint, "
            f"and no other, expires in {_KEPT_HOURS} hours. Until then the state is not usable, "
            "and --recall brings it back. The checkpoint's files stay; --files deletes those of "
            "history=files once the keys are gone and placesGrace is over."
        ),
        epilog=example(
            "redis-state purge --url redis://localhost:6379/0 --checkpoint /data/flights --dry-run"
        ),
    )
    which = parser.add_mutually_exclusive_group()
    add_checkpoint(which)
    which.add_argument("--gen", help="the checkpoint's id, as `redis-state queries` prints it")
    add_storage_options(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only count the keys, change nothing")
    how.add_argument("--now", action="store_true", help="remove at once and for good")
    how.add_argument("--recall", action="store_true", help="bring a purged checkpoint back")
    parser.add_argument(
        "--files",
        action="store_true",
        help="delete the files of a checkpoint that was purged before, once nothing can need them; "
        "without --gen and --checkpoint: list what purged checkpoints left",
    )
    parser.add_argument(
        "--exclusive",
        action="store_true",
        help="with --files: confirm that no other copy of Redis uses the folder of the files, "
        "where that does not lie in the checkpoint, or the checkpoint goes on under another id; or "
        "that the checkpoint was deleted with it",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--force",
        action="store_true",
        help="proceed even if the query seems to run, or forks and kept versions need its state",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Purges after a confirmation, brings a purged state back, or deletes its files."""
    if arguments.exclusive and not arguments.files:
        raise ConfigError(_WHAT, found="--exclusive needs --files", advice="Give both.")
    if arguments.files and (arguments.now or arguments.recall):
        raise ConfigError(
            _WHAT,
            found="--files goes with neither --now nor --recall",
            advice="Purge first. Once the keys are gone, run the command with --files.",
        )
    config = config_of(arguments)
    if arguments.gen is None and arguments.checkpoint is None:
        if not arguments.files:
            raise ConfigError(
                _WHAT, found="no checkpoint is named", advice="Give --checkpoint FOLDER or --gen."
            )
        with closing(Client(config)) as client:
            list_purged_files(client, keys.tenant_of(config.key_prefix))
        return 0
    gen: str = arguments.gen if arguments.checkpoint is None else gen_of(folder_of(arguments))
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        if arguments.files:
            delete_purged_files(client, arguments, gen, tenant)
            return 0
        if arguments.recall:
            _tell_recalled(
                gen, _shown(lambda line: recall(client, gen, tenant=tenant, progress=line))
            )
            return 0
        if arguments.dry_run or not arguments.yes:
            found = _shown(
                lambda line: purge(client, gen, tenant=tenant, dry_run=True, progress=line)
            )
            _check_found(gen, found)
            _tell(gen, found, "would remove")
            if arguments.dry_run:
                for sign in signs_of_life(client, gen, tenant=tenant):
                    print(f"warning: the checkpoint may be in use: {sign}", file=sys.stderr)
                return 0
            ask(_WHAT)
        refuse_if_used(client, gen, tenant=tenant, attempted=_WHAT, force=arguments.force)
        how = purge if arguments.now else expire
        force = arguments.force
        if force:
            metas = manifests_of(client, gen, tenant)
            for one in described_owners(client, metas, tenant=tenant):
                print(f"warning: this purge takes the state from {one}", file=sys.stderr)
        found = _shown(lambda line: how(client, gen, tenant=tenant, force=force, progress=line))
    _check_found(gen, found)
    _tell(gen, found, "removed")
    if not arguments.now:
        print(
            f"they expire in {_KEPT_HOURS} hours; until then `redis-state purge --gen {gen} "
            "--recall` brings them back"
        )
    if found.files is not None:
        _tell_files(found.files)
    return 0


def _shown(do: Callable[[Progress], _Result]) -> _Result:
    line = ProgressLine()
    try:
        return do(line)
    finally:
        line.end()


def _check_found(gen: str, found: Purged) -> None:
    if not found.keys and not found.listed:
        raise NotFoundError(
            _WHAT,
            found=f"there is no key of checkpoint {gen} in this Redis, database and key prefix",
            advice="`redis-state queries` lists the checkpoints.",
        )


def _tell(gen: str, found: Purged, verb: str) -> None:
    print(
        f"checkpoint {gen}: {verb} {found.keys} keys "
        f"({found.partitions} partitions, {found.segments} segments, {found.strays} strays)"
    )


def _tell_files(found: PurgedFiles) -> None:
    size = figures.size(found.bytes)
    print(
        f"its {found.files} files ({size}) stay in {found.folder}/{found.gen}; "
        f"from {figures.moment(found.due)} UTC on, `redis-state purge --gen {found.gen} --files` "
        "deletes them"
    )


def _tell_recalled(gen: str, found: Recalled) -> None:
    print(
        f"checkpoint {gen}: brought back {found.partitions} partitions with {found.segments} "
        "segments"
    )
    if found.incomplete:
        print(
            f"warning: {found.incomplete} segments do not have all their blocks; `redis-state "
            f"doctor --gen {gen}` prints which batches can be served",
            file=sys.stderr,
        )
