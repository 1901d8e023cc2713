"""The judge of a kill run: what it takes for right, and what not."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest

from tests.faults.feed import FAMILIES, Feed, Rows, Taken, sources

SEEDS = range(20)
BATCHES = 5


def given_out(feed: Feed, family: str, steps: list[Taken]) -> list[Rows]:
    ends = [(0,) * sources(family), *steps]
    return [feed.expected(family, *pair) for pair in pairwise(ends)]


def ends_of(feed: Feed, family: str, outputs: list[Rows]) -> set[Taken]:
    taken = {(0,) * sources(family)}
    for rows in outputs:
        taken = feed.advances(family, taken, rows)
    return taken


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("files", [[1, 1, 1, 1, 1], [1, 2, 1, 1], [2, 3]])
def test_batches_of_several_files_are_right(family: str, files: list[int]) -> None:
    for seed in SEEDS:
        feed = Feed(seed, BATCHES)
        steps = [(end,) * sources(family) for end in accumulate(files)]
        assert (BATCHES,) * sources(family) in ends_of(feed, family, given_out(feed, family, steps))


def test_one_side_of_a_join_may_be_ahead() -> None:
    for seed in SEEDS:
        feed = Feed(seed, BATCHES)
        outputs = given_out(feed, "join", [(1, 1), (2, 3), (3, 4), (4, 5), (5, 5)])
        assert (BATCHES, BATCHES) in ends_of(feed, "join", outputs)
        assert sum(map(len, outputs)) == len(feed.expected("join", (0, 0), (BATCHES, BATCHES)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_too_few_or_too_many_is_wrong(family: str) -> None:
    wrong = 0
    for seed in SEEDS:
        feed = Feed(seed, BATCHES)
        steps = [(end,) * sources(family) for end in range(1, BATCHES + 1)]
        outputs = given_out(feed, family, steps)
        for at in (1, 2, 3):
            if not outputs[at]:
                continue
            wrong += 1
            fewer = [*outputs[:at], outputs[at][1:], *outputs[at + 1 :]]
            doubled = [*outputs[:at], sorted([*outputs[at], outputs[at][0]], key=str)]
            again = [*outputs[:at], sorted([*outputs[at], *outputs[at - 1]], key=str)]
            for bent in (fewer, doubled, again if outputs[at - 1] else doubled):
                assert (BATCHES,) * sources(family) not in ends_of(feed, family, bent)
    assert wrong > len(SEEDS)
