"""Random types of Spark, nested two deep, as DDL text; no session is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

DEPTH = 2
_FIELDS_MAX = 3
_DIGITS_MAX = 38
_WEIGHTS = {"array": 1, "map": 1, "struct": 2}

ATOMS = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string",
    "binary", "date", "timestamp", "timestamp_ntz", "time", "day-time", "year-month", "calendar",
    "collated", "variant", "geometry", "geography", "void", "nanos", "nanos_ntz",
)  # fmt: skip
"""Every atomic type of Spark 4.3; `char` and `varchar` are strings once they are in a row."""

UNORDERED = frozenset({"variant", "geometry", "geography", "calendar", "collated"})
"""Types by which Spark does not group, or groups by other rules than the bytes."""

_PROCESSOR = frozenset(ATOMS) - {
    "time", "day-time", "year-month", "calendar", "collated", "variant", "geometry", "geography",
    "void", "nanos", "nanos_ntz",
}  # fmt: skip
"""Types that a state variable of `transform_with_state` may declare."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: an atom with its sizes, or a container with its parts."""

    name: str
    parts: tuple[Kind, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def ddl(self) -> str:
        """The type as Spark's DDL has it."""
        if self.name == "struct":
            pairs = zip(fields(self), self.parts, strict=True)
            named = (f"{name}: {part.ddl}" for name, part in pairs)
            return f"STRUCT<{', '.join(named)}>"
        if self.parts:
            return f"{self.name.upper()}<{', '.join(part.ddl for part in self.parts)}>"
        return _DDL.get(self.name, self.name.upper()) + (
            f"({', '.join(map(str, self.sizes))})" if self.sizes else ""
        )

    def atoms(self) -> Iterator[str]:
        """The names of all atoms in the type."""
        if not self.parts:
            yield self.name
        for part in self.parts:
            yield from part.atoms()

    def has(self, *names: str) -> bool:
        """Returns whether the type is, or contains, one of these atoms or containers."""
        return self.name in names or any(part.has(*names) for part in self.parts)


_DDL = {
    "day-time": "INTERVAL DAY TO SECOND",
    "year-month": "INTERVAL YEAR TO MONTH",
    "calendar": "INTERVAL",
    "collated": "STRING COLLATE UTF8_LCASE",
    "nanos": "TIMESTAMP_LTZ",
    "nanos_ntz": "TIMESTAMP_NTZ",
}


def fields(kind: Kind) -> tuple[str, ...]:
    """The names of a struct's fields."""
    return tuple(f"f{at}" for at in range(len(kind.parts)))


def random_kind(chance: random.Random, depth: int = DEPTH, *, atoms: tuple[str, ...]) -> Kind:
    """A type of these atoms, with at most so many containers around each."""
    if depth and chance.random() < 0.5:
        (name,) = chance.choices([*_WEIGHTS], [*_WEIGHTS.values()])
        if name != "struct":
            # Spark 4.3 itself cannot read an array back in which one of these is null.
            atoms = tuple(one for one in atoms if one not in ("geometry", "geography"))
        if name == "array":
            return Kind(name, (random_kind(chance, depth - 1, atoms=atoms),))
        if name == "map":
            keys = tuple(one for one in atoms if one not in ("void", *UNORDERED))
            key = random_kind(chance, 0, atoms=keys)
            return Kind(name, (key, random_kind(chance, depth - 1, atoms=atoms)))
        count = chance.randint(1, _FIELDS_MAX)
        return Kind(name, tuple(random_kind(chance, depth - 1, atoms=atoms) for _ in range(count)))
    name = chance.choice(atoms)
    if name == "decimal":
        digits = chance.choice((1, 9, 10, 18, 19, _DIGITS_MAX, chance.randint(1, _DIGITS_MAX)))
        return Kind(name, sizes=(digits, chance.choice((0, digits, chance.randint(0, digits)))))
    if name == "time":
        return Kind(name, sizes=(chance.choice((0, 3, 6)),))
    if name in ("geometry", "geography"):
        return Kind(name, sizes=(4326,))
    if name in ("nanos", "nanos_ntz"):
        return Kind(name, sizes=(chance.randint(7, 9),))
    return Kind(name)


@dataclass(frozen=True, slots=True)
class Case:
    """The types of one seed: of a key, of a value of state, and of a processor's variable."""

    seed: int
    key: Kind
    value: Kind
    variable: Kind
    user_key: Kind


def case_of(seed: int) -> Case:
    """The types of a seed; they depend on nothing else."""
    chance = random.Random(seed)
    keys = tuple(one for one in ATOMS if one not in UNORDERED)
    processor = tuple(one for one in ATOMS if one in _PROCESSOR)
    return Case(
        seed,
        key=random_kind(chance, atoms=keys),
        value=random_kind(chance, atoms=ATOMS),
        variable=random_kind(chance, atoms=processor),
        user_key=random_kind(chance, 0, atoms=processor),
    )
