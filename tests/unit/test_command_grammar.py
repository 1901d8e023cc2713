"""One grammar for all commands: how a query, a version and a key are given."""

from __future__ import annotations

import argparse
import re

import pytest

from redis_state.cli.main import build_parser
from redis_state.cli.other.completion import commands_of

COMMANDS = commands_of(build_parser())
NEED_A_QUERY = {
    "changes",
    "diff",
    "export",
    "fork",
    "get",
    "history",
    "hot",
    "keep",
    "places",
    "scan",
    "show",
    "size",
    "skew",
    "why-growing",
    "why-slow",
}
WORK_WITHOUT_A_QUERY = {"maintain", "rescale"}
TAKE_A_KEY = {"get", "history", "scan"}
NAME_A_STORE = ("--operator", "--store", "--family", "--text", "--variant")


def positionals(name: str) -> list[argparse.Action]:
    return [one for one in COMMANDS[name]._actions if not one.option_strings]


def options(name: str) -> dict[str, argparse.Action]:
    return {word: one for one in COMMANDS[name]._actions for word in one.option_strings}


def shape(action: argparse.Action) -> tuple[object, ...]:
    """Input that an option accepts, and its meaning."""
    return (
        action.dest,
        action.metavar,
        action.nargs,
        action.type,
        action.default,
        action.choices,
        action.help,
    )


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


def test_the_query_is_the_first_positional_argument() -> None:
    with_query = {
        name for name in COMMANDS if any("QUERY" in (one.metavar, one.dest.upper())
        for one in COMMANDS[name]._actions)
    }  # fmt: skip
    assert with_query == NEED_A_QUERY | WORK_WITHOUT_A_QUERY
    for name in sorted(with_query):
        first, *_ = positionals(name)
        assert (first.dest, first.metavar) == ("query", "QUERY"), name
        assert first.nargs == ("?" if name in WORK_WITHOUT_A_QUERY else None), name
    meanings = {positionals(name)[0].help for name in NEED_A_QUERY}
    assert meanings == {"name or id of the query, or a gen"}


def test_a_key_is_given_in_one_way() -> None:
    with_key = {name for name in COMMANDS if any(one.dest == "key" for one in positionals(name))}
    assert with_key == TAKE_A_KEY
    helps = []
    for name in sorted(TAKE_A_KEY):
        query, key = positionals(name)
        assert (query.dest, key.dest) == ("query", "key")
        assert (key.metavar, key.nargs) == ("COLUMN=VALUE", "*")
        helps.append(str(key.help))
    shortest = min(helps, key=len)
    assert [text for text in helps if not text.startswith(shortest)] == []
    spelled = {word for name in COMMANDS for word in options(name)}
    assert not spelled & {"--query", "--key", "--prefix"}


def test_a_store_and_a_version_are_named_in_one_way() -> None:
    stores = {name for name in COMMANDS if "--family" in options(name)}
    assert stores == {"changes", "diff", "get", "history", "hot", "scan"}
    for word in NAME_A_STORE:
        assert len({repr(shape(options(name)[word])) for name in stores}) == 1, word
    versions = {name for name in COMMANDS if "--at" in options(name)}
    assert versions == {"export", "get", "scan", "sql"}
    assert len({repr(shape(options(name)["--at"])) for name in versions}) == 1


@pytest.mark.parametrize("name", ["doctor", "rewind"])
def test_doctor_and_rewind_take_store_names_anywhere(name: str) -> None:
    (stores,) = positionals(name)
    assert (stores.dest, stores.metavar, stores.nargs) == ("stores", "STORE", "*")
    options = ["--to-batch", "2"] if name == "rewind" else []
    for words in (("a", "b", "--gen", "1"), ("--gen", "1", "a", "b"), ("a", "--gen", "1", "b")):
        assert parsed(name, *words, *options).stores == ["a", "b"]
    assert parsed(name, "--gen", "1", *options).stores == []


@pytest.mark.parametrize("name", sorted(TAKE_A_KEY))
def test_options_are_accepted_anywhere(name: str) -> None:
    for words in (
        ("flights", "a=1", "b=2", "--operator", "3"),
        ("flights", "--operator", "3", "a=1", "b=2"),
        ("--operator", "3", "flights", "a=1", "b=2"),
        ("flights", "a=1", "--operator", "3", "b=2"),
        ("flights", "a=1", "--operator", "3", "--", "b=2"),
    ):
        found = parsed(name, *words)
        assert (found.query, found.key, found.operator) == ("flights", ["a=1", "b=2"], 3)


@pytest.mark.parametrize("name", sorted(TAKE_A_KEY))
def test_words_after_two_hyphens_are_not_options(name: str) -> None:
    for words in (
        ("flights", "--operator", "3", "--", "-k=a", "--d=1"),
        ("--operator", "3", "flights", "--", "-k=a", "--d=1"),
        ("--operator", "3", "--", "flights", "-k=a", "--d=1"),
    ):
        found = parsed(name, *words)
        assert (found.query, found.key, found.operator) == ("flights", ["-k=a", "--d=1"], 3)


def test_negative_batch_is_not_an_option() -> None:
    for words in (("flights", "-1"), ("flights", "--", "-1")):
        found = parsed("diff", "--operator", "1", *words)
        assert (found.query, found.a, found.b) == ("flights", -1, None)


@pytest.mark.parametrize(
    "words",
    [
        ("get", "--query", "flights", "carrier=UA"),
        ("maintain", "--query", "flights"),
        ("scan", "flights", "--prefix", "carrier=UA"),
        ("rescale", "--store", "visits", "--partitions", "2"),
        ("doctor", "--store", "visits"),
        ("rewind", "--store", "visits", "--to-batch", "2"),
        ("get",),
    ],
)
def test_other_spellings_are_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parsed(*words)
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_each_default_by_its_value(name: str) -> None:
    """A text that lacks its `f` would print the name of a constant in braces."""
    texts = [one.help or "" for one in COMMANDS[name]._actions]
    assert [text for text in texts if re.search(r"\{[A-Za-z_.]+\}", text)] == []
