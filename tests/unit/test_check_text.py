"""The rules of English that `tools/check_text.py` checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_text


@pytest.mark.parametrize(
    "text",
    [
        "As `Query.open`.",
        "What an earlier call found out about a store.",
        "Whether a key is there.",
        "How the state of an operator is taken.",
        "The same at one version.",
        "Tells nobody.",
        "Let go what was read.",
        "Of the commit log.",
        "Without what is newer.",
    ],
)
def test_pointing_docstring_is_found(text: str) -> None:
    source = f'def read():\n    """{text}\n\n    More.\n    """\n'
    assert [line for line, _ in check_text.openings_of(source)] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "Returns whether a key is there.",
        "Cached metadata of a store.",
        "Asynchronous twin of `Query`.",
        "Items of a listing.",
        "Hash of a key.",
    ],
)
def test_naming_docstring_passes(text: str) -> None:
    assert list(check_text.openings_of(f'class A:\n    """{text}"""\n')) == []


def test_pointing_scaladoc_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_text, "ROOT", tmp_path)
    path = tmp_path / "A.scala"
    path.write_text("/** What a reader knows. */\nclass A\n\n/** Reads rows. */\nclass B\n")
    (problem,) = check_text.problems_of(path)
    assert problem.startswith("A.scala:1: the first line points instead of naming")


def test_crowded_package_is_found() -> None:
    modules = [f"part_{number}.py" for number in range(20)]
    full = [check_text.ROOT / "redis_state" / "rows" / name for name in ("__init__.py", *modules)]
    assert check_text.crowded(full) == []
    more = [*full, check_text.ROOT / "redis_state" / "rows" / "one_more.py"]
    assert check_text.crowded(more) == ["redis_state/rows: 21 modules, more than 20"]
    assert check_text.crowded(check_text.ROOT / "tests" / name for name in (*modules, "a.py")) == []


@pytest.mark.parametrize(
    ("name", "most"),
    [("redis_state/a.py", 450), ("jvm-adapter/core/src/main/A.scala", 450), ("tests/a.py", 500)],
)
def test_long_module_is_found(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_text, "ROOT", tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("\n" * most)
    assert check_text.problems_of(path) == []
    path.write_text("\n" * (most + 1))
    (problem,) = check_text.problems_of(path)
    assert problem == f"{name}: {most + 1} lines, more than {most}"


@pytest.mark.parametrize(
    ("subject", "faults"),
    [
        ("Reject collated keys in transform_with_state", 0),
        ("Merge branch 'reads'", 0),
        ("Let the hearts of played processes beat at once", 1),
        ("reject collated keys.", 1),
        ("Document " + "x" * 70, 1),
    ],
)
def test_commit_subjects(subject: str, faults: int) -> None:
    assert len(check_text.subject_problems(subject)) == faults


def test_subject_of_a_message_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "message"
    message.write_text("Say what a reader costs\n\nWhat the body says is free.\n")
    assert check_text.main(["--subject", str(message)]) == 1
    assert "Say what a reader costs" in capsys.readouterr().out
