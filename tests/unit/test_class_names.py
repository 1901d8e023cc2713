"""One name, one class: a reader who finds a class by its name has found the one there is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import redis_state

PACKAGE = Path(redis_state.__file__).parent
TWINS = "aio.py"
"""Its classes have the names of the synchronous ones, on purpose."""


def test_no_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name != TWINS:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name.lstrip("_")].append(name)
    assert len(places) > 400
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
