"""The way in through `transform_with_state`: objects, and columns in each of its forms."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from redis_state.errors import RedisStateError
from redis_state.live import Reader
from redis_state.testing import ProcessorTest
from tests.spark.fuzz_values import schemas, texts
from tests.spark.fuzz_values.objects import is_writable, objects_of
from tests.spark.fuzz_values.schemas import Case, Kind
from tests.spark.fuzz_values.texts import text
from tests.spark.fuzz_values.values import rows_of
from tests.spark.fuzz_values.ways_out import Expected, Findings, Out

# Python workers cannot import these modules.
for _module in (__name__, schemas.__name__, texts.__name__):
    cloudpickle.register_pickle_by_value(sys.modules[_module])  # type: ignore[no-untyped-call]

OUT = "row int, told string"
ROWS = 12
FORMS = ("pandas", "rows", "arrow")
STATES = ("value", "list", "map")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")


class Keeper(StatefulProcessor):
    """Writes each column to a value, a list and a map state, and returns the outcome.

    Args:
        cases: The columns are called x0, x1 and so on.
        given: For each case an object for each row; ``None`` takes those of the columns.
    """

    def __init__(self, cases: Sequence[Case], given: Sequence[Sequence[Any]] | None) -> None:
        self._cases = cases
        self._given = given

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = [
            (
                handle.getValueState(f"v{at}", f"v {case.variable.ddl}"),
                handle.getListState(f"l{at}", f"v {case.variable.ddl}"),
                handle.getMapState(f"m{at}", "k int", f"v {case.variable.ddl}"),
            )
            for at, case in enumerate(self._cases)
        ]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        (row,) = key
        pieces = list(rows)
        told = [self._keep(at, row, pieces[0]) for at in range(len(self._cases))]
        yield self._output(row, json.dumps(told), pieces[0])

    def _keep(self, at: int, row: int, piece: Any) -> list[str]:
        """Returns for each kind of state the text of a value read back, or of a refusal."""
        value, several, pairs = self._states[at]
        kind = self._cases[at].variable
        try:
            given = self._value(at, row, piece)
        except Exception as error:  # noqa: BLE001  # Python has no object for it
            return [f"none: {type(error).__name__}"] * 3
        if given is _LEFT_OUT:
            return ["none: no object"] * 3
        calls: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (lambda: value.update((given,)), lambda: value.get()),
            (lambda: several.put([(given,), (given,)]), lambda: [*several.get(), None, None][1]),
            (lambda: pairs.updateValue((row,), (given,)), lambda: pairs.getValue((row,))),
        ]
        return [told_of(lambda one: text(kind, one[0]), put, read) for put, read in calls]

    def _value(self, at: int, row: int, piece: Any) -> Any:
        if self._given is not None:
            return self._given[at][row] if row < len(self._given[at]) else _LEFT_OUT
        name = f"x{at}"
        if hasattr(piece, "iloc"):
            return piece[name].iloc[0]
        return piece[name][0].as_py() if hasattr(piece, "column") else piece[name]

    def _output(self, row: int, told: str, piece: Any) -> Any:
        if hasattr(piece, "iloc"):
            import pandas as pd

            return pd.DataFrame({"row": [row], "told": [told]})
        if hasattr(piece, "column"):
            import pyarrow as pa

            return pa.table({"row": pa.array([row], pa.int32()), "told": [told]})
        return Row(row=row, told=told)


def told_of(shown: Callable[[Any], str], put: Callable[[], Any], read: Callable[[], Any]) -> str:
    """The text of what a state gives back once it was put, or how it was refused."""
    try:
        put()
    except RedisStateError as error:
        left = "" if read() is None else ", and something was changed"
        return f"refused: {type(error).__name__}: {error}{left}"
    except Exception as error:  # noqa: BLE001  # what is looked for
        return f"fault: {type(error).__name__} on update: {error}"
    try:
        return shown(read())
    except Exception as error:  # noqa: BLE001  # as above
        return f"fault: {type(error).__name__}: {error}"


class _LeftOut:
    """Stands for a row that has no object; equal to itself in every process."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LeftOut)

    __hash__ = object.__hash__


_LEFT_OUT = _LeftOut()


def keep(cases: Sequence[Case], form: str, url: str) -> Findings:
    """Run one batch of a processor over all cases, and read its state by every way.

    Args:
        form: One of `FORMS`, or ``objects`` for objects that the processor makes by itself.
    """
    values = [values_of(case, form) for case in cases]
    given = [[one for _, one in pairs] for pairs in values] if form == "objects" else None
    named = [f"x{at} {case.variable.ddl}" for at, case in enumerate(cases)] if not given else []
    columns = ", ".join(["row int", *named])
    found = Findings()
    with ProcessorTest(
        Keeper(cases, given),
        key="row",
        input=columns,
        schema=OUT,
        rows="rows" if given else form,  # type: ignore[arg-type]  # one of them
        url=url,
    ) as test:
        test.run(list(_input(values, columns=not given)))
        answers = answers_of(test.again())
        test.run()
        with redis_state.connect(url) as reader:
            for at, case in enumerate(cases):
                found.add(_check(reader, test, at, case, values[at], answers, form))
    return found


def values_of(case: Case, form: str) -> list[tuple[Any, Any]]:
    """The values that a form is given, each with its object; Arrow has a place for all of them."""
    values = rows_of(case.variable, f"{case.seed} variable", ROWS)
    if form in ("columns", "arrow in Spark"):
        return [(value, None) for value in values]
    pairs = objects_of(case.variable, values)
    if form == "objects":
        return pairs
    # Arrow has no place for a text that UTF-8 cannot write, so no column has one.
    whole = [pair for pair in pairs if is_writable(pair[1])]
    if form.startswith("pandas"):
        # pandas has no null beside numbers: docs/stateful-python.md says what becomes of them.
        whole = [pair for pair in whole if not _blurred(case.variable, pair[0])]
    return whole


def _blurred(kind: Kind, value: Any, *, column: bool = True) -> bool:
    """Returns whether a column or an array holds a null among numbers."""
    if value is None:
        return column and kind.name in _NUMBERS
    if kind.name == "array":
        return any(_blurred(kind.parts[0], one) for one in value)
    if kind.name == "map":
        return any(_blurred(kind.parts[1], one, column=False) for _, one in value)
    parts = zip(kind.parts, value, strict=True) if kind.name == "struct" else ()
    return any(_blurred(part, one, column=False) for part, one in parts)


def _input(values: Sequence[Sequence[tuple[Any, Any]]], *, columns: bool) -> Iterator[Any]:
    for row in range(ROWS):
        cells = [pairs[row % len(pairs)][1] if pairs else None for pairs in values]
        yield (row, *cells) if columns else (row,)


def answers_of(output: Any) -> dict[int, list[list[str]]]:
    if hasattr(output, "to_pylist"):
        output = [Row(**row) for row in output.to_pylist()]
    elif hasattr(output, "itertuples"):
        output = [Row(row=one.row, told=one.told) for one in output.itertuples()]
    return {row["row"]: json.loads(row["told"]) for row in output}


def compared(found: Findings, way: str, what: str, answer: str, wanted: str) -> bool:
    """Compare what a processor told of a value with what it was; whether it was kept."""
    if answer.startswith("none:"):
        return False
    if answer.startswith("refused:") and not answer.endswith("changed"):
        found.refused[f"{way}: {what}"] += 1
        return False
    found.compared[way] += 1
    if answer != wanted:
        found.fault(way, what, f"{answer[:160]}, not {wanted[:160]}")
    return True


def _check(
    reader: Reader,
    test: ProcessorTest,
    at: int,
    case: Case,
    pairs: Sequence[tuple[Any, Any]],
    answers: dict[int, list[list[str]]],
    form: str,
) -> Findings:
    """Compare what the processor got at once, and what is read afterwards, with what was given."""
    found = Findings()
    kind, what = case.variable, f"seed {case.seed}, {case.variable.ddl}"
    kept: list[list[tuple[tuple[str, ...], tuple[str, ...]]]] = [[], [], []]
    for row, told in sorted(answers.items()):
        wanted = text(kind, pairs[row % len(pairs)][0] if pairs else None)
        for which, answer in enumerate(told[at]):
            way = f"{form} {STATES[which]}"
            if compared(found, way, what, answer, wanted):
                kept[which].append(((str(row),), (wanted,)))
    if kept[0]:
        state = reader.query(test.store).operator(0, family=f"v{at}")
        expected = Expected([Kind("int")], [kind], sorted(kept[0]), ["row", what])
        out = Out(reader, state, expected, 1, f"{test.store}_v{at}").check(
            briefly=form != "objects"
        )
        out.faults = [f"{form}, {fault}" for fault in out.faults]
        found.add(out)
    return found
