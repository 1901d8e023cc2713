"""Campaigns: many schedules by their seeds, what they have to meet, and mutants to be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol


@dataclass(frozen=True)
class Failure:
    """A schedule that broke a rule."""

    seed: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return f"seed {self.seed}: {'; '.join(self.problems)}"


@dataclass
class Result:
    """Counters of schedules, and the schedules that broke a rule."""

    counters: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Count what other schedules met, too."""
        self.counters.update(other.counters)
        self.failures += other.failures


@dataclass(frozen=True)
class Group:
    """Some schedules, and what they met."""

    seeds: Sequence[int]
    result: Result


@dataclass(frozen=True)
class Verdict:
    """Result for one mutant; `failure` is `None` if no schedule found it."""

    name: str
    failure: Failure | None


class Mutant(Protocol):
    """One rule less."""

    @property
    def name(self) -> str:
        """Unique name of the mutant."""

    @property
    def rule(self) -> str:
        """Rule that the mutant leaves out."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Schedules of one kind.

    Attributes:
        command: What runs it.
        code: The folders with the code that is run; results of other code do not add up.
        headline: Counters that stand above the table.
        forbidden: Counters that must be zero.
        required: What a whole run has to meet, and the counter that says so.
        mutant_seeds: A mutant has to be found by one of so many schedules.
        at_once: A process runs so many schedules at a time.
        workers: While it is entered, so many processes do the work of the `map` that it gives;
            ``None`` means one for each core.
        some_schedules: Runs those of these seeds, in a worker.
        one_mutant: Runs schedules on the mutant of this name until one breaks a rule, in a worker.
    """

    command: str
    code: Sequence[str]
    headline: Sequence[str]
    forbidden: Sequence[str]
    required: Mapping[str, str]
    mutants: Sequence[Mutant]
    mutant_seeds: int
    at_once: int
    workers: Callable[[int | None], AbstractContextManager[Any]]
    some_schedules: Callable[[list[int]], Group]
    one_mutant: Callable[[str], Verdict]

    def groups(self, seeds: Iterable[int], jobs: int | None) -> Iterator[Group]:
        """Run schedules, some at a time, in so many processes."""
        rest = iter(seeds)
        some = iter(lambda: list(islice(rest, self.at_once)), [])
        with self.workers(jobs) as run:
            yield from run(self.some_schedules, some)

    def verdicts(self, names: Sequence[str], jobs: int | None) -> Iterator[Verdict]:
        """Searches for the mutants of these names, in that many processes."""
        with self.workers(jobs) as run:
            yield from run(self.one_mutant, names)

    def run(self, seeds: Iterable[int], *, jobs: int | None = None) -> Result:
        """Run schedules, and sum up what they met."""
        result = Result()
        for group in self.groups(seeds, jobs):
            result.add(group.result)
        return result

    def faults(self, result: Result) -> list[str]:
        """Failures of schedules and forbidden events; empty if there were none."""
        found = [str(failure) for failure in result.failures]
        return found + [
            f"{name}: {result.counters[name]}" for name in self.forbidden if result.counters[name]
        ]

    def complaints(self, result: Result) -> list[str]:
        """Reasons why a whole run does not pass; empty if it passes."""
        return self.faults(result) + [
            f"no schedule met '{name}'"
            for name, counter in self.required.items()
            if not result.counters[counter]
        ]
