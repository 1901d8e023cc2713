"""Follows a call through the package: which functions and files it enters, and in which direction.

A path is easy to read if it has few files, if calls go from higher layers to lower ones, and if no
call comes back into a file that waits for it.
"""

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

CLIENT = "backend.client"
"""Stands for its layer: what it does behind its interface is the same for every path."""


def layers() -> dict[str, int]:
    """Returns the layer of each module at the top of the package; 0 is the highest."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r'id = "layers".*?layers = \[(.*?)\]', text, re.DOTALL)
    assert listed is not None
    rows = re.findall(r'"([^"]+)"', listed[1])
    return {name: at for at, row in enumerate(rows) for name in row.split(" | ")}


@dataclass(slots=True)
class Walk:
    """The calls of one thread.

    Attributes:
        functions: Names as documentation spells them, without ``redis_state.``, in the order of
            their first calls.
        onward: By file of a layer with I/O, the files of such layers that are entered from there.
        uphill: Calls into a higher layer, as ``caller -> callee``.
        again: Calls back into a file that waits for the caller. An object that calls its own
            overridden method is not among them.
    """

    functions: list[str] = field(default_factory=list)
    onward: dict[str, list[str]] = field(default_factory=dict)
    uphill: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The files of the path: those from which the call goes on, and the client.

        A file that only answers is no part of it: one that calls no other, or one of the layers
        without I/O.
        """
        return [*self.onward, CLIENT]


class Follower:
    """Profile function that follows calls.

    Args:
        round_begins: The function whose call begins another round; empty means a single round.

    Attributes:
        walk: Calls of this round.
        before: Calls of the round before; ``None`` in the first one.
    """

    def __init__(self, round_begins: str = "") -> None:
        self.walk = Walk()
        self.before: Walk | None = None
        self._round_begins = round_begins
        self._ranks = layers()
        self._names: dict[Any, tuple[str, str]] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Records one event of the interpreter, if it is a call."""
        if event != "call" or not (name := self._name(frame))[0]:
            return
        _, function = name
        if function == self._round_begins:
            self.before, self.walk = self.walk, Walk()
        if "<" not in frame.f_code.co_name and function not in self.walk.functions:
            self.walk.functions.append(function)
        callers = [one for one in _stack(frame) if self._name(one)[0]]
        if callers:
            self._judge(frame, name, callers)

    def _judge(self, frame: FrameType, name: tuple[str, str], callers: list[FrameType]) -> None:
        module, function = name
        above, caller = self._name(callers[0])
        modules = [self._name(one)[0] for one in callers]
        if module == above or any(one.startswith("backend.") for one in modules):
            return
        edge = f"{caller} -> {function}"
        if self._rank(module) < self._rank(above):
            _add(self.walk.uphill, edge)
        owner = frame.f_locals.get("self")
        if module in modules and owner is not callers[0].f_locals.get("self", frame):
            _add(self.walk.again, edge)
        if self._does_io(module) and self._does_io(above):
            _add(self.walk.onward.setdefault(above, []), module)

    def _rank(self, module: str) -> int:
        return self._ranks[module.split(".")[0]]

    def _does_io(self, module: str) -> bool:
        top = module.split(".")[0]
        return top in ("backend", "files") or self._ranks[top] < self._ranks["rows"]

    def _name(self, frame: FrameType) -> tuple[str, str]:
        """Returns the module and the function of a frame; two empty names outside the package."""
        code = frame.f_code
        if code not in self._names:
            path, module, function = Path(code.co_filename), "", ""
            if path.is_relative_to(PACKAGE):
                module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
                qualified = getattr(code, "co_qualname", None) or _qualified(frame)
                function = f"{module}.{qualified}"
            self._names[code] = module, function
        return self._names[code]


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _stack(frame: FrameType) -> Iterator[FrameType]:
    """Yields the frames above one, the nearest first."""
    above = frame.f_back
    while above is not None:
        yield above
        above = above.f_back


@contextmanager
def followed() -> Iterator[Walk]:
    """Follows the calls of this thread while the block runs."""
    follower = Follower()
    sys.setprofile(follower)
    try:
        yield follower.walk
    finally:
        sys.setprofile(None)


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


STEPS_MAX = FILES_MAX = 12
"""A reader should be able to hold a whole path in mind."""

HANDED_DOWN = ("spark.worker._PartitionBudget.",)
"""Implementations that a higher layer hands to a lower one: the memory budget of a worker."""


def check(title: str, walk: Walk, *, files_max: int = FILES_MAX) -> None:
    """Checks that a call enters the documented functions in their order, and only goes down.

    Args:
        files_max: Most files of the path; see `Walk.files`.
    """
    steps = documented(title)
    assert 0 < len(steps) <= STEPS_MAX
    unknown = [step for step in steps if step not in walk.functions]
    assert unknown == [], f"not entered; the call entered {walk.functions}"
    assert steps == sorted(steps, key=walk.functions.index)
    turns = {"uphill": walk.uphill, "again": walk.again}
    assert not any(map(_without_handed_down, turns.values())), turns
    assert len(walk.files) <= files_max, walk.onward


def _without_handed_down(edges: list[str]) -> list[str]:
    return [edge for edge in edges if not edge.split(" -> ")[1].startswith(HANDED_DOWN)]
