"""Lookup of one key: the columns of the form, and the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis_state.errors import ConfigError
from redis_state.format.header import Family
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.rows.json_values import to_json
from redis_state.rows.text_values import column_value, columns_of, has_columns, plain_value
from redis_state.types.schema import Atomic, Struct, Type

SHOWN_MAX = 64 * 1024
"""Characters of a value that a page shows."""
HISTORY_MAX = 20
PAST_SHOWN_MAX = 2000
VERSION_MAX = 1 << 53
_WHAT = "looking up a key"


@dataclass(frozen=True, slots=True)
class LookupTarget:
    """State to look in: a store of a query's operator, and one of its families."""

    gen: str
    operator: int
    store: str
    family: str = DEFAULT_FAMILY


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key column, as a field of the form."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """Input of a user.

    Attributes:
        texts: The key columns in their order; ``None`` for null.
        version: ``None`` means the newest confirmed one.
    """

    texts: tuple[str | None, ...]
    version: int | None


@dataclass(frozen=True, slots=True)
class LookupForm:
    """Fields of the form.

    Attributes:
        families: Names of the families to choose from; a single one needs no choice.
        columns: Key columns of the chosen family; empty if a family has to be chosen first.
        plain: Whether the store is a store of Python, whose keys are values without columns.
    """

    families: tuple[str, ...]
    columns: tuple[KeyColumn, ...]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """A past value of a key, as JSON; ``None`` if the batch removed the key.

    Attributes:
        earlier: Whether an older batch may have written the value, whose delta is not kept.
    """

    batch: int
    value: str | None
    earlier: bool


class OpenedTarget:
    """An opened look-up target; made by `open_place`.

    Attributes:
        form: Fields of the form.
    """

    def __init__(self, state: OperatorState, family: Family | None, form: LookupForm) -> None:
        self.form = form
        self._state = state
        self._family = family

    def value(self, asked: KeyEntry) -> str | None:
        """Returns the value of a key as JSON; ``None`` if there is no such key.

        Raises:
            ConfigError: No family was chosen; a text does not fit its column; or a value is nested
                too deep to be shown.
            RedisStateError: See `OperatorState.get`.
        """
        family = self._family
        if family is None:
            raise ConfigError(
                _WHAT,
                found="the operator keeps each state variable in a family of its own",
                advice="Choose a family.",
            )
        get = self._state.get_list if family.multi_value else self._state.get
        found = get(_key(family, asked.texts), asked.version)
        if found is None or (family.multi_value and not found):
            return None
        return _shown(found)

    def history(self, asked: KeyEntry) -> list[Past]:
        """Returns the newest values that a key had, the newest first; empty without a family.

        Raises:
            RedisStateError: See `OperatorState.history`.
        """
        if self._family is None:
            return []
        found = self._state.history(_key(self._family, asked.texts), limit=HISTORY_MAX)
        return [
            Past(
                one.batch,
                None if one.value is None else _shown(one.value)[:PAST_SHOWN_MAX],
                one.earlier,
            )
            for one in found
        ]


def open_place(reader: Reader, place: LookupTarget) -> OpenedTarget:
    """Opens a look-up target by asking Redis.

    Raises:
        RedisStateError: The query, the store or the family does not exist; Redis gives no answer.
    """
    query = reader.query(place.gen)
    given: dict[str, Any] = {"family": place.family, "text": "replace"}
    state = query.operator(place.operator, place.store, **given)
    names = tuple(one.name for one in state.families() if not one.internal)
    if len(names) > 1 and place.family not in names:
        return OpenedTarget(state, None, LookupForm(names, ()))
    family = state.family()
    if not has_columns(family):
        return OpenedTarget(
            state, family, LookupForm(names, (KeyColumn("key", "text, or JSON"),), plain=True)
        )
    readable = state.readable_columns()
    if readable is not None:
        state = query.operator(place.operator, place.store, **given, columns=readable)
    columns = (KeyColumn(one.name, _type_text(one.type)) for one in columns_of(family).fields)
    return OpenedTarget(state, family, LookupForm(names, tuple(columns)))


def _shown(found: Any) -> str:
    try:
        return json.dumps(to_json(found), ensure_ascii=False, indent=2)
    except RecursionError as error:
        raise ConfigError(
            _WHAT,
            found="the value is nested too deep to be shown",
            advice="Use redis_state.connect in Python.",
        ) from error


def _key(family: Family, texts: tuple[str | None, ...]) -> Any:
    if not has_columns(family):
        given = [text for text in texts if text is not None]
        _check_count(given=len(given), columns=1)
        return plain_value(given[0])
    fields = columns_of(family).fields
    _check_count(given=len(texts), columns=len(fields))
    return {
        field.name: column_value(field.name, field.type, text)
        for field, text in zip(fields, texts, strict=True)
    }


def _check_count(*, given: int, columns: int) -> None:
    if given != columns:
        raise ConfigError(
            _WHAT,
            found=f"{given} columns were given, and the key has {columns}",
            advice="Open the form again: the columns of the state may have changed.",
        )


def _type_text(type_: Type) -> str:
    if isinstance(type_, Atomic):
        return type_.name.replace("_", " ")
    if isinstance(type_, Struct):
        parts: Mapping[str, str] = {part.name: _type_text(part.type) for part in type_.fields}
        return "JSON object with " + ", ".join(f"{name} ({text})" for name, text in parts.items())
    return "a list or map, which cannot be looked up"
