"""Each command that a message or a page prints can be given, and a scene follows it to its end."""

from __future__ import annotations

import contextlib
import io
import re
from itertools import chain
from pathlib import Path

import pytest

from redis_state._version import __version__
from redis_state.cli.main import build_parser
from tests.support.printed_commands import (
    ROOT,
    Printed,
    of_pages,
    of_python,
    of_scala,
    subcommands,
)

ADVICE = "tests/contract/test_printed_advice.py"
BACK = "tests/contract/test_going_back.py"

# Names of commands whose arguments only the reader knows: which message talks of them, and why.
MENTIONS = {
    ("redis_state/backend/replies.py", "acl"): "the server's version is not known there",
    ("ReplyClass.scala", "acl"): "the server's version is not known there",
    ("redis_state/backend/replies.py", "doctor"): "a reply does not know whose key it is of",
    ("ReplyClass.scala", "doctor"): "a reply does not know whose key it is of",
    ("redis_state/exporter.py", "show"): "a metric's help is of all queries",
    ("redis_state/exports/manifest.py", "export"): "the same command as before",
    ("redis_state/exports/manifest.py", "export --to"): "names what wrote a folder",
    ("redis_state/status/growth_causes.py", "scan --columns …"): "columns are the reader's choice",
    ("redis_state/status/growth_causes.py", "skew"): "printed below the query that it is about",
    ("redis_state/status/slow_causes.py", "skew"): "printed below the query that it is about",
    ("redis_state/status/slow_causes.py", "rescale"): "the number is the reader's choice",
    ("redis_state/cli/look/size.py", "places"): "printed below the query that it is about",
    ("redis_state/cli/operate/purged_files.py", "places 1"): "the query may have any name",
    ("redis_state/cli/look/show.py", "places"): "printed below the query that it is about",
    ("redis_state/places/owners.py", "doctor"): "a segment does not know its checkpoint's folder",
    ("Block.scala", "doctor"): "a block does not know its checkpoint's folder",
    ("FileBlocks.scala", "doctor"): "a segment does not know its checkpoint's folder",
    ("SparkVersion.scala", "conf"): "the command that sets a session up",
    ("RedisStateQueryListener.scala", "migrate"): "the new folder is the reader's choice",
    ("Adoption.scala", "migrate"): "the new folder is the reader's choice",
    ("RescaleAtStart.scala", "rescale"): "the new folder is the reader's choice",
    ("StateEngine.scala", "purge --now"): "the gen is in a file that is named beside it",
    ("docs/commands.md", "acl --reader"): "an option, in a sentence",
    ("docs/dashboard.md", "acl --reader"): "an option, in a sentence",
    ("docs/metrics.md", "acl --reader"): "an option, in a sentence",
    ("docs/errors.md", "purge --recall"): "an option, in a sentence",
    ("docs/errors.md", "fork --detach"): "an option, in a sentence",
    ("docs/reliability.md", "maintain --vanished-after"): "an option, in a sentence",
    ("docs/operations.md", "acl --reader"): "an option, in a sentence",
    ("docs/rescale.md", "rescale --checkpoint"): "an option, in a sentence",
    ("docs/rescale.md", "rescale 1"): "the arguments stand in the examples",
    ("docs/rescale.md", "purge --checkpoint"): "an option, in a sentence",
    ("docs/operations.md", "COMMAND --help"): "any of them",
}

# Which test takes a command as it is printed, and follows it until the state is as it has to be.
SCENES = {
    ("redis_state/backend/replies.py", "purge --gen 1 --recall"): (
        f"{ADVICE}::test_purged_store_is_recalled_or_starts_empty"
    ),
    ("redis_state/backend/replies.py", "purge --gen 1 --now"): (
        f"{ADVICE}::test_purged_store_is_recalled_or_starts_empty"
    ),
    ("redis_state/maintain/pinned.py", "purge --gen 1 --force"): (
        "tests/contract/test_forked_tools.py::test_forced_purge_warns_of_each_fork_and_kept_version"
    ),
    ("redis_state/maintain/pinned.py", "keep 1 --drop 1"): (
        "tests/contract/test_keep.py::test_dropped_name_lets_retention_remove_the_segments"
    ),
    ("redis_state/status/growth_causes.py", "keep 1 --drop 1"): (
        "tests/contract/test_keep.py::test_dropped_name_lets_retention_remove_the_segments"
    ),
    ("redis_state/protocol/foreign.py", "purge --gen 1 --recall"): (
        "tests/contract/test_forked_tools.py::test_recalled_parent_serves_its_fork_again"
    ),
    ("redis_state/protocol/foreign.py", "maintain --once"): (
        "tests/contract/test_restored_forks.py::test_maintenance_pins_again_what_a_parent_has"
    ),
    ("redis_state/protocol/kept.py", "keep 1 --drop 1"): (
        "tests/contract/test_keep.py::test_commands_take_the_name"
    ),
    ("redis_state/protocol/kept.py", "keep 1 --list"): (
        "tests/contract/test_keep.py::test_commands_take_the_name"
    ),
    ("redis_state/protocol/pins.py", "keep 1 --list"): (
        "tests/contract/test_keep.py::test_commands_take_the_name"
    ),
    ("redis_state/forks/detach.py", "keep 1 --drop 1"): (
        "tests/contract/test_detached_forks.py::test_fork_whose_own_fork_needs_the_parent_is_not_detached"
    ),
    ("redis_state/forks/keep.py", "keep 1 --drop 1"): (
        "tests/contract/test_keep.py::test_taken_name_is_refused_with_its_batch"
    ),
    ("redis_state/cli/operate/doctor.py", "queries"): (
        f"{ADVICE}::test_advised_read_only_commands_run"
    ),
    ("HistoryUpkeep.scala", "places 1 --sweep --checkpoint /checkpoint --exclusive"): (
        "tests/contract/test_places_command.py::"
        "test_folder_outside_the_checkpoint_needs_a_confirmation"
    ),
    ("redis_state/cli/move/import_.py", "maintain --once"): (
        f"{ADVICE}::test_partitions_kept_by_an_import_are_verified"
    ),
    ("redis_state/cli/operate/purge.py", "purge --gen 1 --recall"): (
        f"{ADVICE}::test_printed_recall_restores_a_purged_checkpoint"
    ),
    ("redis_state/cli/operate/purge.py", "purge --gen 1 --files"): (
        "tests/contract/test_purged_files.py::"
        "test_files_of_a_purged_store_are_deleted_a_grace_later"
    ),
    ("redis_state/cli/operate/purge.py", "doctor --gen 1"): (
        f"{ADVICE}::test_incomplete_segments_after_a_recall_are_named"
    ),
    ("redis_state/cli/operate/rewind.py", "doctor --checkpoint 1"): (
        f"{ADVICE}::test_impossible_rewind_advises_doctor"
    ),
    ("redis_state/cli/move/rescale.py", "purge --gen 1"): (
        f"{ADVICE}::test_advised_purge_removes_old_partitions_of_a_rescale"
    ),
    ("redis_state/errors.py", "size 1"): f"{ADVICE}::test_advised_read_only_commands_run",
    ("redis_state/maintain/recall.py", "purge --gen 1 --now"): (
        "tests/contract/test_recall.py::"
        "test_full_server_refuses_a_recallable_purge"
    ),
    ("redis_state/maintain/vanished.py", "purge --gen 1 --files"): (
        "tests/contract/test_purged_files.py::"
        "test_files_of_a_purged_store_are_deleted_a_grace_later"
    ),
    ("redis_state/maintain/vanished.py", "purge --gen 1 --recall"): (
        "tests/contract/test_recall.py::"
        "test_purged_keys_expire_and_a_recall_restores_them"
    ),
    ("redis_state/status/file_causes.py", "places 1 --sweep"): (
        "tests/contract/test_figures_of_bounds.py::test_doctor_names_files_that_stay"
    ),
    ("redis_state/status/slow_files.py", "places 1 --bring-back"): (
        "tests/contract/test_places_command.py::"
        "test_bring_back_fills_redis_and_ends_the_moving"
    ),
    ("redis_state/status/growth_causes.py", "maintain --once"): (
        f"{ADVICE}::test_advised_read_only_commands_run"
    ),
    ("redis_state/status/slow_causes.py", "maintain --once"): (
        f"{ADVICE}::test_advised_read_only_commands_run"
    ),
    ("redis_state/status/growth_causes.py", "purge --gen 1"): (
        f"{ADVICE}::test_advised_purge_removes_old_partitions_of_a_rescale"
    ),
    ("redis_state/recovery/bringing_back.py", "doctor --gen 1"): (
        f"{ADVICE}::test_advised_purge_removes_a_partition_that_blocks_an_import"
    ),
    ("redis_state/recovery/bringing_back.py", "purge --gen 1 --now"): (
        f"{ADVICE}::test_advised_purge_removes_a_partition_that_blocks_an_import"
    ),
    ("redis_state/exports/import_plan.py", "purge --gen 1 --now"): (
        f"{ADVICE}::test_advised_purge_frees_a_store_name_for_an_import"
    ),
    ("redis_state/exports/import_plan.py", "restore --checkpoint 1"): (
        f"{ADVICE}::test_export_of_an_abandoned_timeline_advises_restore"
    ),
    ("redis_state/recovery/rewind.py", "doctor --checkpoint 1"): (
        f"{ADVICE}::test_impossible_rewind_advises_doctor"
    ),
    ("redis_state/batches/driver.py", "doctor --gen 1 --checkpoint /checkpoint"): (
        f"{BACK}::test_doctor_advice_follows_logs_set_back_by_hand"
    ),
    ("redis_state/batches/driver.py", "rescale 1 --partitions 1"): (
        "tests/contract/test_rescale_store.py::"
        "test_next_rescale_finishes_a_call_killed_at_its_last_step"
    ),
    ("redis_state/batches/streams.py",
     "rewind --gen 1 --checkpoint /checkpoint --to-batch 1 --yes"): (
        f"{ADVICE}::test_batch_that_ended_early_reruns_after_the_advised_rewind"
    ),
    ("Refusal.scala", "purge --gen 1 --recall"): (
        "tests/spark/test_printed_advice.py::test_purged_query_runs_after_the_printed_recall"
    ),
    ("RedisStateQueryListener.scala", "purge --gen 1"): (
        f"{ADVICE}::test_advised_purge_removes_old_partitions_of_a_rescale"
    ),
    ("WaysOn.scala", "doctor --checkpoint 1 --url 1"): (
        "tests/spark/test_printed_advice.py::test_printed_commands_restore_lost_state"
    ),
    ("WaysOn.scala", "restore --checkpoint 1 --yes --url 1"): (
        "tests/spark/test_printed_advice.py::test_printed_commands_restore_lost_state"
    ),
    ("StateQuota.scala", "size 1"): f"{ADVICE}::test_advised_read_only_commands_run",
    ("RescaleAtStart.scala", "doctor --checkpoint 1"): (
        f"{ADVICE}::test_advised_read_only_commands_run"
    ),
    ("RescaleAtStart.scala", "purge --gen 1"): (
        f"{ADVICE}::test_advised_purge_removes_old_partitions_of_a_rescale"
    ),
}  # fmt: skip
LISTS_QUERIES = f"{ADVICE}::test_advised_read_only_commands_run"


def messages() -> list[Printed]:
    return list(chain(of_python(), of_scala()))


def key_of(printed: Printed) -> tuple[str, str]:
    return printed.file, printed.text


PARSER = build_parser()


def wrong(printed: Printed) -> str:
    """Usage error of the command line; empty if the parser accepts the command."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            PARSER.parse_args(printed.words)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


def test_every_printed_command_is_accepted() -> None:
    found = messages()
    assert len(found) > 40
    for printed in chain(found, of_pages(blocks=True)):
        # The tutorial shows what `--version` prints.
        if key_of(printed) not in MENTIONS and printed.text != __version__:
            assert wrong(printed) == "", printed


def test_pages_name_only_existing_commands() -> None:
    names = subcommands()
    for printed in of_pages(blocks=False):
        if key_of(printed) not in MENTIONS and printed.text not in names:
            assert wrong(printed) == "", printed


def test_every_message_with_a_command_has_a_scene() -> None:
    found = {key_of(printed) for printed in messages()} - set(MENTIONS)
    unfollowed = {key for key in found if key[1] != "queries" and key[0] != OPTIONS_PAGE}
    assert unfollowed == set(SCENES) - {("redis_state/cli/operate/doctor.py", "queries")}
    assert set(MENTIONS) <= {key_of(one) for one in chain(messages(), of_pages(blocks=False))}


OPTIONS_PAGE = "redis_state/cli/other/options_doc.py"


@pytest.mark.parametrize("scene", sorted({*SCENES.values(), LISTS_QUERIES}))
def test_every_listed_scene_exists(scene: str) -> None:
    path, _, name = scene.partition("::")
    text = (ROOT / Path(path)).read_text("utf-8")
    assert re.search(rf"^ *def {name}\(", text, re.MULTILINE)
