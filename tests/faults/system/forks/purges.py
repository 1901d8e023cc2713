"""Purges of parents and forks: refused, forced, called back, for good; and the end of all pins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.errors import RedisStateError
from redis_state.ids import PartitionId
from tests.faults.system.forks import rules
from tests.faults.system.forks.forked import Fork, ForkedQuery, ForkedStore, read_version
from tests.faults.system.forks.kept import Subject, gen_of
from tests.faults.system.query import Query

if TYPE_CHECKING:
    from tests.faults.system.forks.play import Forks

_LATELY_MS = 240_000
_HOUR_MS = 3_600_000
_DAY_MS = 26 * _HOUR_MS


class Purges:
    """Purges within a schedule with forks."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """Steps to choose from."""
        return self._refused, self._forced, self._there_and_back, self._for_good

    # ---- of what others need ----------------------------------------------------------------

    def _parents(self) -> list[Subject]:
        """Checkpoints whose segments are pinned for sure."""
        found = []
        for one in self._forks.subjects():
            gen = gen_of(one)
            if gen and (self._forks.children(gen) or self._forks.keeps.pinned_in(gen)):
                found.append(one)
        return found

    def _stop(self, subject: Subject) -> bool:
        """Nobody uses it any more; whether all went well."""
        play = self._forks.play
        if isinstance(subject, ForkedQuery):
            subject.stop()
        elif isinstance(subject, Query):
            return play.stop_all()
        return not play.world.problems

    def _refused(self) -> None:
        """A purge is refused, and names every fork and kept version."""
        forks, parents = self._forks, self._parents()
        if not parents or forks.play.held:
            return
        subject = forks.dice.choice(parents)
        if not self._stop(subject):
            return
        forks.play.people.idle(_LATELY_MS)
        gen = gen_of(subject) or ""
        words = ["purge", "--gen", gen, "--yes", *(("--now",) if forks.dice.one_in(2) else ())]
        status, said = forks.lab.command(*words)
        forks.lab.counters["purges refused for pins"] += 1
        if not status or "others read its state" not in said:
            forks.wrong(f"{' '.join(words)} of what others need: {said}", "taken in use")
            return
        named = [f"gen {_gen(one)}" for one in forks.children(gen)]
        named += [f"kept version '{name}'" for name in forks.keeps.pinned_in(gen)]
        if missing := [text for text in named if text not in said]:
            forks.wrong(f"a purge was refused, and did not name {missing}: {said}", "false errors")
        if forks.lab.redis("HEXISTS", keys.query(gen), "purged"):
            forks.wrong("a purge was refused, and left its mark", "false errors")

    def _forced(self) -> None:
        """A parent is purged by force: its forks read what they need for a day, then it is back."""
        forks, parents = self._forks, self._parents()
        if not parents or forks.play.held:
            return
        subject = forks.dice.choice(parents)
        if not self._stop(subject):
            return
        gen = gen_of(subject) or ""
        said = forks.command("purge", "--gen", gen, "--yes", "--force")
        forks.lab.counters["parents purged by force"] += 1
        if missing := [one for one in forks.children(gen) if _gen(one) not in said]:
            forks.wrong(f"a forced purge did not warn of {missing}: {said}", "false errors")
        forks.purged.add(gen)
        for one in forks.children(gen):
            if isinstance(one, ForkedQuery):
                one.read()
                one.alone()
                one.stop()
            else:
                one.write()
        forks.check()
        self._recall(gen)
        forks.keeps.read_all(gen)

    def _recall(self, gen: str) -> None:
        self._forks.command("purge", "--gen", gen, "--recall")
        self._forks.purged.discard(gen)

    # ---- of forks ---------------------------------------------------------------------------

    def _there_and_back(self) -> None:
        """A fork is purged: its parent keeps what it reads, until it is called back."""
        forks = self._forks
        if not forks.queries or forks.play.held:
            return
        one = forks.dice.choice(forks.queries)
        one.stop()
        forks.command("purge", "--gen", one.gen, "--yes", "--force")
        forks.purged.add(one.gen)
        try:
            read_version(forks.lab.url, one.gen, None)
        except RedisStateError:
            pass
        else:
            forks.wrong("a fork that was purged can be read", "wrong")
        if not forks.children(one.gen):
            # Otherwise maintenance reports that its forks read from what was purged.
            forks.play.people.idle(_HOUR_MS * forks.dice.between(1, 12))
            forks.play.administrators.maintain()
        forks.check()
        if one.of and one.gen not in rules.owners_of(forks.lab.server, _parents_of(one)):
            forks.wrong("a fork that was purged is pinned no more", "rules of pins broken")
        self._recall(one.gen)
        forks.lab.counters["forks purged and called back"] += 1
        one.alone()
        one.read()

    def _for_good(self) -> None:
        """A fork is purged at once and for good: nothing of it is pinned any more."""
        forks = self._forks
        every = forks.every()
        if not every or forks.play.held:
            return
        one = forks.dice.choice(every)
        gen = _gen(one)
        if forks.children(gen) or forks.keeps.pinned_in(gen):
            return
        self._stop(one)
        self._purge_now(one)
        forks.lab.counters["forks purged for good"] += 1

    def _purge_now(self, one: Fork) -> None:
        forks, gen = self._forks, _gen(one)
        parents = _parents_of(one)
        if isinstance(one, ForkedStore):
            one.close()
            forks.stores.remove(one)
        else:
            forks.queries.remove(one)
        forks.keeps.drop_all(gen)
        forks.command("purge", "--gen", gen, "--yes", "--now", "--force")
        if gen in rules.owners_of(forks.lab.server, parents):
            forks.wrong("a fork is gone, and its parent pins for it", "rules of pins broken")

    # ---- the end ----------------------------------------------------------------------------

    def all(self) -> None:
        """Everything goes: forks of forks before their parents, names, and what was given up."""
        forks = self._forks
        lab, play = forks.lab, forks.play
        forks.keeps.drop_all()
        main = [*forks.ids(play), *forks.ids(play.python)]
        expiring: list[str] = []
        for one in reversed(forks.every()):
            gen = _gen(one)
            self._stop(one)
            if forks.dice.one_in(2):
                self._purge_now(one)
            else:
                if isinstance(one, ForkedStore):
                    one.close()
                forks.command("purge", "--gen", gen, "--yes", "--force")
                expiring.append(gen)
        self._purge_given_up()
        began = rules.owners_of(lab.server, main)
        for looked in range(2):
            lab.jump(_DAY_MS)
            play.administrators.maintain()
            pinned = rules.owners_of(lab.server, main)
            if not looked and (early := (began - pinned) & set(expiring)):
                forks.wrong(f"pins ended at the first look: {early}", "rules of pins broken")
        left = rules.pin_fields(lab.server, main)
        if left or rules.formats(lab.server, main) - {"1"}:
            forks.wrong(f"fields of pins are left: {left}", "rules of pins broken")
        lab.counters["checks that no pin is left"] += 1
        forks.queries.clear()
        forks.stores.clear()
        # A name of Python's stays known where its checkpoint expired.
        names = keys.names(tenant="")
        for name, gen in lab.redis("HGETALL", names).items():
            if gen.decode() in forks.gens:
                lab.redis("HDEL", names, name)

    def _purge_given_up(self) -> None:
        """Purges forks that were given up, and lacked only a note at their parent or an expiry.

        The latter expire behind two looks at their parent, unless that is purged before.
        """
        forks = self._forks
        lab, play = forks.lab, forks.play
        known = {_gen(one) for one in forks.every()}
        roots = {gen_of(play), play.python.gen()}
        for gen in sorted(forks.gens - known):
            metas = lab.redis("KEYS", f"{{rs:{gen}:*:m")
            left = {lab.redis("PTTL", name): name for name in metas}
            parents = {
                (lab.redis("HGET", name, "g") or b"").decode()[:32] for name in left.values()
            }
            is_complete = lab.redis("PTTL", keys.query(gen)) == -1
            is_purged = lab.redis("HEXISTS", keys.query(gen), "purged")
            if not is_purged and (is_complete or (-1 in left and not parents & roots)):
                forks.command("purge", "--gen", gen, "--yes", "--now", "--force")
                lab.counters["given up, but complete"] += is_complete


def _gen(one: Fork) -> str:
    return one.gen if isinstance(one, ForkedQuery) else one.gen() or ""


def _parents_of(one: Fork) -> list[PartitionId]:
    return [id_.of_gen(one.of) for id_ in one.ids] if one.of else []
