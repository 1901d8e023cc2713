"""A replay, as `redis-state replay` does it but for its session of Spark: a batch runs again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state import config as options
from redis_state import keys
from redis_state.files import folder_at
from redis_state.replay.planned_batch import planned_batch
from redis_state.replay.state import ReplayedState, compare_states
from tests.faults.system.forks import rules
from tests.faults.system.forks.forked import gen_in

if TYPE_CHECKING:
    from tests.faults.system.forks.play import Forks


def replay(forks: Forks) -> None:
    """Forks the state before a batch, runs the batch as it was planned, and compares."""
    play, lab = forks.play, forks.lab
    world = play.world
    newest, oldest = len(world.logged) - 2, max(1, world.oldest)
    if newest < oldest or world.unwritten:
        return
    batch = forks.dice.between(oldest, newest)
    forks.replays += 1
    folder = play.folder.parent / f"replay{forks.replays}"
    words = ["fork", str(play.folder), "--to", str(folder), "--at-batch", str(batch - 1)]
    token, went_back = world.tokens[batch], len(world.timelines)
    made = forks.make_query(play, folder.name, words, batch - 1)
    if made is None:
        return
    if len(world.timelines) == went_back and world.oldest <= batch:
        planned_batch(folder_at(str(play.folder)), batch).copy_to(folder_at(str(folder)))
        made.world.tokens.append(token)
        made.alone(1)
        made.stop()
        produced = gen_in(play.folder)
        if produced is None or world.problems:
            return
        config = options.parse({"url": lab.url})
        found = compare_states(config, [ReplayedState("", produced, made.gen)], batch)
        lab.counters["replays"] += 1
        if not found.same or any(one.different for one in found.stores):
            forks.wrong(f"the replay of batch {batch} differs: {found}", "wrong")
        made.read()
    made.stop()
    forks.queries.remove(made)
    forks.command("purge", "--gen", made.gen, "--yes", "--now", "--force")
    if made.gen in rules.owners_of(lab.server, forks.ids(play)):
        forks.wrong("a replay that has ended is pinned", "rules of pins broken")
    query = keys.query(gen_in(play.folder) or "")
    if lab.redis("HEXISTS", query, f"fork:{made.gen}"):
        forks.wrong("a replay that has ended is listed", "rules of pins broken")
