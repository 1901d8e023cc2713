"""The commands that messages in the source, and pages, print: `redis-state …`, as words."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from redis_state.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "redis_state"
SCALA = ROOT / "jvm-adapter"
DOCS = ROOT / "docs"
VALUE = "1"
"""Stands for what a message fills in: no option takes it for another one."""

_QUOTED = re.compile(r"`(redis-state [^`]+)`")
# In Scala, behind a text: up to its end, or the end of its sentence.
_SCALA_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_JOINED = re.compile(r'"\s*\+\s*s?"')
_FILLED = re.compile(r"\$\{[^}]*\}|\$\w+|%s")
_COMMENTS = re.compile(r"/\*.*?\*/|^\s*//.*?$", re.DOTALL | re.MULTILINE)
# What stands for several words: how the messages that have them spell it.
_SEVERAL = {"$place": f"--checkpoint {VALUE}", "${options(conf)}": f" --url {VALUE}"}
_PLACEHOLDERS = {"N": VALUE, "FOLDER": "/checkpoint", "QUERY": VALUE, "NAME": VALUE}


@dataclass(frozen=True, slots=True)
class Printed:
    """A command that a file prints.

    Attributes:
        words: Behind `redis-state`; what is filled in is `VALUE`.
    """

    file: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """As the table of scenes has it."""
        return " ".join(self.words)


@cache
def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands."""
    for action in build_parser()._actions:
        if isinstance(action.choices, dict):
            return action.choices
    raise AssertionError("the command has no subcommands")


def of_python() -> Iterator[Printed]:
    """Yields the commands in errors, logs and output of Python, not those in docstrings."""
    for path in sorted(PYTHON.rglob("*.py")):
        for text in _texts(ast.parse(path.read_text("utf-8"))):
            yield from _found(str(path.relative_to(ROOT)), text)


def of_scala() -> Iterator[Printed]:
    """Yields the commands in the strings of the JVM's sources."""
    for path in sorted(SCALA.rglob("src/main/**/*.scala")):
        text = _JOINED.sub("", _COMMENTS.sub("", path.read_text("utf-8")))
        for string in _SCALA_STRING.findall(text):
            yield from _found(path.name, string[1:-1])


def of_pages(*, blocks: bool) -> Iterator[Printed]:
    """Yields the commands in code blocks of the pages, or in code within the text."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text("utf-8")
        name = str(path.relative_to(ROOT))
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE) * blocks:
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\$ )?redis-state ", line):
                    yield _words(name, line.removeprefix("$ "))
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for command in () if blocks else _QUOTED.findall(prose):
            yield _words(name, " ".join(command.split()))


def _found(file: str, text: str) -> Iterator[Printed]:
    if "redis-state " not in text:
        return
    for command in _QUOTED.findall(text):
        yield _words(file, command)
    names = "|".join(sorted(subcommands(), key=len, reverse=True))
    for command in re.findall(rf"redis-state (?:{names}) --[^\n`\"]*", _QUOTED.sub("", text)):
        yield _words(file, command.rstrip("\\n"))


def _words(file: str, command: str) -> Printed:
    for several, words in _SEVERAL.items():
        command = command.replace(several, words)
    filled = shlex.split(re.split(r"[|>]| # ", _FILLED.sub(VALUE, command))[0])
    return Printed(file, tuple(_PLACEHOLDERS.get(word, word) for word in filled[1:]))


def _filled(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Name):
        return _SEVERAL.get(f"${value.value.id}", VALUE)
    return VALUE


def _texts(tree: ast.Module) -> Iterator[str]:
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
        if isinstance(node, ast.keyword) and node.arg in ("help", "description", "epilog"):
            parts.update(id(one) for one in ast.walk(node.value))
        if isinstance(node, ast.JoinedStr):
            if id(node) in parts:
                continue
            parts.update(id(value) for value in node.values)
            yield "".join(map(_filled, node.values))
        if isinstance(node, ast.Constant) and id(node) not in parts:
            yield node.value if isinstance(node.value, str) else ""
