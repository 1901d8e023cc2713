"""Results of campaigns over one state of the code, kept in a file that later runs extend."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.campaign import Failure, Group, Result, Verdict

_ROOT = Path(__file__).parents[2]
_SUFFIXES = (".py", ".lua", ".scala")


class OtherCodeError(Exception):
    """The file was begun with other code; what that found says nothing of this one."""


@dataclass
class Results:
    """Schedules and mutants, each counted once.

    Attributes:
        spans: First and last seed of what was run, in ascending order, with gaps between them.
        verdicts: The seed that found a mutant, `None` if none did.
        path: Where it is kept; `None` means nowhere.
    """

    code: str
    path: Path | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    result: Result = field(default_factory=Result)
    verdicts: dict[str, int | None] = field(default_factory=dict)
    seconds: float = 0.0

    @staticmethod
    def of(path: Path | None, folders: Sequence[str]) -> Results:
        """Reads the results from a file, if it exists.

        Args:
            folders: Where the code is that was run.

        Raises:
            OtherCodeError: The file was begun with other code.
        """
        code = code_digest(folders)
        if path is None or not path.exists():
            return Results(code, path)
        kept = json.loads(path.read_text())
        if kept["code"] != code:
            raise OtherCodeError(f"{path} was begun with code {kept['code']}, this is {code}")
        failures = [Failure(one["seed"], tuple(one["problems"])) for one in kept["failures"]]
        return Results(
            code,
            path,
            [(first, last) for first, last in kept["spans"]],
            Result(Counter(kept["counters"]), failures),
            kept["verdicts"],
            kept["seconds"],
        )

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """Seeds that were not run yet."""
        done = {seed for first, last in self.spans for seed in range(first, last + 1)}
        return [seed for seed in seeds if seed not in done]

    def add(self, group: Group, seconds: float) -> None:
        """Count schedules that were not counted yet."""
        self.result.add(group.result)
        self.seconds += seconds
        self.spans = _merged([*self.spans, *((seed, seed) for seed in group.seeds)])
        self._keep()

    def add_verdict(self, verdict: Verdict, seconds: float) -> None:
        """Keep how a mutant fared."""
        self.verdicts[verdict.name] = verdict.failure.seed if verdict.failure else None
        self.seconds += seconds
        self._keep()

    def _keep(self) -> None:
        if self.path is None:
            return
        kept = {
            "code": self.code,
            "spans": self.spans,
            "seconds": self.seconds,
            "counters": dict(sorted(self.result.counters.items())),
            "failures": [
                {"seed": one.seed, "problems": one.problems} for one in self.result.failures
            ],
            "verdicts": self.verdicts,
        }
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(kept, indent=1))
        beside.replace(self.path)


def code_digest(folders: Sequence[str]) -> str:
    """Digest of the code in some folders."""
    digest = hashlib.sha256()
    files = (file for folder in folders for file in (_ROOT / folder).rglob("*"))
    for file in sorted(file for file in files if file.suffix in _SUFFIXES):
        digest.update(f"{file.relative_to(_ROOT)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged
