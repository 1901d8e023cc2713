"""docs/platforms: what its pages show of redis-state exists. Nothing is run on a platform."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

import redis_state
from redis_state import config
from redis_state.cli.main import build_parser
from tools.chart import CHART, RENDERED

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "platforms").glob("*.md"))
PLATFORMS = [page for page in PAGES if page.stem != "index"]
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OPTION = re.compile(re.escape(config.conf_prefix()) + r"([\w.]*\w)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(page.read_text("utf-8")) if kind == language]


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words behind each `redis-state` of a console, with the name of the page."""
    for page in PAGES:
        for text in blocks(page, "console"):
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line)
                if line.startswith("$ ") and "redis-state" in words:
                    words = words[words.index("redis-state") + 1 :]
                    end = words.index(">") if ">" in words else len(words)
                    yield page.stem, words[:end]


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """The functions of redis_state that a block calls, with the keywords."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="redis_state"), attr=name)):
                yield name, [one.arg or "" for one in node.keywords]


def test_paths_and_objects_of_the_chart_exist() -> None:
    text = (CHART.parents[1] / "docs" / "platforms" / "kubernetes.md").read_text("utf-8")
    for path in re.findall(r"\bdocker/[a-zA-Z/.-]*[a-zA-Z]", text):
        assert (CHART.parents[1] / path).exists(), path
    rendered = (RENDERED / "minimal.rendered.yaml").read_text("utf-8")
    for name in re.findall(r"service/(\S+)", text):
        assert f"name: {name}\n" in rendered
    (values,) = [
        one for one in blocks(PAGES[0].with_name("kubernetes.md"), "yaml") if "acl:" in one
    ]
    made = set(re.findall(r"create secret generic (\S+)", text))
    assert set(re.findall(r"secret: ([\w-]+)", values)) <= made


@pytest.mark.parametrize("page", PLATFORMS, ids=lambda page: page.stem)
def test_page_begins_with_limits_and_ends_with_sources(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "What does not work"
    assert headings[-2:] == ["What to watch for", "Sources"]


def test_the_commands_are_those_of_redis_state() -> None:
    found = list(commands())
    assert {page for page, _ in found} == {page.stem for page in PAGES}
    for _, words in found:
        arguments = build_parser().parse_args(words)
        if words[0] == "conf":
            assert arguments.spark in config.spark_minors()
            for option in arguments.option:
                config.option_named(option.partition("=")[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_options_and_calls_are_those_of_redis_state(page: Path) -> None:
    for name in _OPTION.findall(page.read_text("utf-8")):
        assert config.option_named(name).name == name
    options = {option.python_name for option in config.options().values()}
    for text in blocks(page, "python"):
        for name, keywords in calls(text):
            known = inspect.signature(getattr(redis_state, name)).parameters.keys() | options
            assert known.issuperset(keywords)


def test_the_resources_are_well_formed() -> None:
    resource, values = [yaml.safe_load(text) for page in PAGES for text in blocks(page, "yaml")]
    assert resource["kind"] == "SparkApplication"
    assert set(values) <= set(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")))
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text("utf-8")))
    (steps,) = [json.loads(text) for page in PAGES for text in blocks(page, "json")]
    assert steps[0]["Type"] == "Spark"
