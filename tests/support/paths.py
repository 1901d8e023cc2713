"""Follows a call through the package: which functions it enters, and whether it only goes down."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import redis_state

PACKAGE = Path(redis_state.__file__).parent
PROJECT = PACKAGE.parent


def layers() -> dict[str, int]:
    """Returns the layer of each module at the top of the package; 0 is the highest."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r'id = "layers".*?layers = \[(.*?)\]', text, re.DOTALL)
    assert listed is not None
    rows = re.findall(r'"([^"]+)"', listed[1])
    return {name: at for at, row in enumerate(rows) for name in row.split(" | ")}


@dataclass(slots=True)
class Walk:
    """The functions that one thread entered, in the order of their first calls.

    Attributes:
        functions: Names as documentation spells them, without ``redis_state.``.
        before: The functions of the round before, where rounds are told apart.
        uphill: Calls into a higher layer, as ``caller -> callee``.
    """

    functions: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    uphill: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        """Number of modules that the call enters."""
        return len({name for name in map(_module_of, self.functions) if name})


def _module_of(name: str) -> str:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (PACKAGE / "/".join(parts[:end])).with_suffix(".py").exists():
            return ".".join(parts[:end])
    return ""


@contextmanager
def followed() -> Iterator[Walk]:
    """Follows the calls of this thread while the block runs."""
    walk = follow()
    try:
        yield walk
    finally:
        sys.setprofile(None)


def follow(round_begins: str = "") -> Walk:
    """Follows the calls of this thread from now on, until its profile function is another.

    Args:
        round_begins: The function whose call begins another round.
    """
    walk, ranks = Walk(), layers()
    seen: dict[Any, str | None] = {}

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in seen:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE) and "<" not in code.co_name
            qualified = getattr(code, "co_qualname", None) or _qualified(frame)
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts) if inside else ""
            seen[code] = f"{module}.{qualified}" if inside else None
        return seen[code]

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or (name := name_of(frame)) is None:
            return
        if name == round_begins:
            walk.before, walk.functions = walk.functions, []
        if name not in walk.functions:
            walk.functions.append(name)
        caller = frame.f_back
        above = name_of(caller) if caller is not None else None
        if above is not None and ranks[name.split(".")[0]] < ranks[above.split(".")[0]]:
            edge = f"{above} -> {name}"
            if edge not in walk.uphill:
                walk.uphill.append(edge)

    sys.setprofile(enter)
    return walk


def _qualified(frame: FrameType) -> str:
    """Name with its class, which code objects know from Python 3.11 on."""
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    name = frame.f_code.co_name
    if owner is None:
        return name
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        if name in vars(base):
            return f"{base.__name__}.{name}"
    return name


def documented(title: str) -> list[str]:
    """Returns the functions of a numbered list of docs/design.md, below a bold title."""
    text = (PROJECT / "docs/design.md").read_text(encoding="utf-8")
    section = re.search(rf"\*\*{re.escape(title)}\*\*(.*?)(?=\n\*\*|\n## |\Z)", text, re.DOTALL)
    assert section is not None, title
    return re.findall(r"^\d+\. `([\w.<>]+)`", section[1], re.MULTILINE)


STEPS_MAX = 12
"""A reader should be able to hold a whole path in mind."""

HANDED_DOWN = ("spark.worker._PartitionBudget.",)
"""Implementations that a higher layer hands to a lower one: the memory budget of a worker."""


def check(title: str, walk: Walk) -> None:
    """Checks that a call enters the documented functions in their order, and only goes down."""
    steps = documented(title)
    assert 0 < len(steps) <= STEPS_MAX
    unknown = [step for step in steps if step not in walk.functions]
    assert unknown == [], f"not entered; the call entered {walk.functions}"
    assert steps == sorted(steps, key=walk.functions.index)
    callees = [edge.split(" -> ")[1] for edge in walk.uphill]
    assert [name for name in callees if not name.startswith(HANDED_DOWN)] == []
