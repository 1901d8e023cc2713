"""The tree of errors: kinds, messages, pickling, and a section of docs/errors.md for each kind."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from redis_state import errors
from redis_state.errors import ConflictError, Kind, RedisStateError, StateError

DOCS = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
CLASSES = [
    c
    for c in vars(errors).values()
    if isinstance(c, type) and issubclass(c, RedisStateError) and c is not RedisStateError
]


def test_message_names_kind_store_finding_and_advice() -> None:
    error = StateError(
        "Spark asks for version 812",
        found="Redis holds up to 809",
        advice="Restore that Redis.",
        where="operator 0 partition 3",
        version=812,
    )
    assert str(error) == (
        "[REDIS_STATE_LOST] operator 0 partition 3: Spark asks for version 812; "
        "Redis holds up to 809. Restore that Redis."
    )
    assert (error.kind, error.version, error.retryable) == ("STATE_LOST", 812, False)


def test_error_class_sets_advice_and_kind() -> None:
    error = ConflictError("committing version 3", store="operator 0 partition 1")
    assert error.kind is Kind.FENCED
    assert str(error).startswith("[REDIS_FENCED] operator 0 partition 1: committing version 3. ")
    assert "Stop this run" in str(error)


def test_each_kind_has_one_class() -> None:
    owners = [kind for cls in CLASSES for kind in cls.kinds]
    assert sorted(owners) == sorted(Kind)


def test_a_class_refuses_a_foreign_kind() -> None:
    with pytest.raises(ValueError, match="FENCED"):
        StateError("reading", kind=Kind.FENCED)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling(cls: type[RedisStateError]) -> None:
    error = cls("reading", found="nothing", kind=cls.kinds[-1], version=3, operation="get")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_each_kind_is_documented() -> None:
    text = DOCS.read_text("utf-8")
    assert sorted(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == sorted(map(str, Kind))
