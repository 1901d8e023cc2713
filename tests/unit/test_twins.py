"""Names and meanings that both languages share, on the table that the JVM is tested on too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from redis_state import acl, errors
from redis_state.acl import Role
from redis_state.backend.start import asked_of
from redis_state.errors import RedisStateError
from redis_state.protocol.refusal import refusal
from redis_state.store.metrics import BATCH_METRICS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "redis_state" / "backend" / "scripts"
TABLE: dict[str, Any] = json.loads((ROOT / "tests" / "vectors" / "twins.json").read_text("utf-8"))

# Of these, `Refusal` of each language is told what they answer.
OF_A_PARTITION = (
    "abort", "acquire", "lineage", "open", "publish", "renew", "retain", "snapshot", "stage",
)  # fmt: skip


def test_each_kind_has_its_class() -> None:
    ours = {
        str(kind): (cls.__name__, cls.retryable)
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, RedisStateError) and cls is not RedisStateError
        for kind in cls.kinds
    }
    assert {one["kind"]: (one["python"], one["retryable"]) for one in TABLE["errors"]} == ours


def test_difference_between_languages_has_a_reason() -> None:
    for one in TABLE["errors"]:
        assert ("why" in one) == (one["jvm"] is None)
    for one in TABLE["refusals"]:
        assert ("why" in one) == ("only" in one)


@pytest.mark.parametrize(
    "one", [one for one in TABLE["refusals"] if "only" not in one], ids=lambda one: one["reply"]
)
def test_refusal_of_a_script_has_its_kind(one: dict[str, Any]) -> None:
    error = refusal("reading", one["reply"], where="orders", version=3)
    assert str(error.kind) == one["kind"]


def test_answers_of_scripts_match_the_table() -> None:
    known = {one["reply"][0] for one in TABLE["refusals"]} - {"ANYTHING"}
    answered = set()
    for name in OF_A_PARTITION:
        text = (SCRIPTS / f"{name}.lua").read_text("utf-8")
        code = re.sub("--.*", "", text)
        answered |= set(re.findall(r"\{ *'([A-Z_]{2,})'", code))
    assert answered == known | set(TABLE["answers"])


def test_each_fence_reason_is_in_the_table() -> None:
    known = {one["reply"][1] for one in TABLE["refusals"] if one["reply"][0] == "FENCED"}
    text = "".join((SCRIPTS / f"{name}.lua").read_text("utf-8") for name in OF_A_PARTITION)
    assert set(re.findall(r"'FENCED', '([a-z]+)'", text)) == known


def test_each_metric_has_its_twin() -> None:
    named = [one["python"] for one in TABLE["metrics"] if one["python"]]
    assert sorted(named) == sorted(metric.name for metric in BATCH_METRICS)


def test_start_check_covers_the_rights_of_a_job() -> None:
    commands = [tuple(command) for command in TABLE["startCheck"]]
    assert asked_of("{hash}", "{text}") == commands
    asked = {command[0].lower() for command in commands}
    assert asked.isdisjoint(TABLE["rightsNotAsked"])
    assert asked | set(TABLE["rightsNotAsked"]) == set(acl.commands(Role.JOB, version="7.4"))
