"""Analyses a statement: the columns that it needs, and the keys of its rows.

DuckDB parses the statement and returns its tree as JSON. Rows are left out only if the answer is
certainly the same. A table is read by keys if every place that names it compares its key columns
with constants, in the `WHERE` of its own `SELECT`. DuckDB tests the condition again. If the tree
has an unknown shape, the whole table is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis_state.errors import UsageError
from redis_state.rows.key_filter import ColumnPath
from redis_state.sql.tables import folded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Node = dict[str, Any]

_JOINS = {"INNER", "LEFT", "RIGHT", "OUTER"}
_JOIN_KINDS = {"REGULAR", "CROSS", "NATURAL"}
_PLAIN_FUNCTIONS = {"unnest", "range", "generate_series"}
"""Functions that stand for a table, and read no other table by name."""
_CONSTANTS = {"VALUE_CONSTANT", "VALUE_PARAMETER", "OPERATOR_CAST"}

_SCHEMA = "main"

WHAT = "running a SQL statement"


@dataclass(frozen=True, slots=True)
class Use:
    """One place of a statement that names a table.

    Attributes:
        equal: By the lower-case path of a column, the expressions of which the column must equal
            one; all of these conditions hold at once.
    """

    equal: Mapping[ColumnPath, Sequence[Node]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """An analysed statement.

    Attributes:
        uses: By the lower-case name of the table.
        columns: Lower-case names that include all columns read; ``None`` if any column may be read.
        lists_tables: Whether the statement lists all tables, as `SHOW TABLES` does.
        own: Those of the names that the statement itself defines by `WITH`.
        parameters: Names of its parameters; ``1``, ``2`` and so on for numbered ones.
    """

    text: str
    uses: Mapping[str, Sequence[Use]]
    columns: frozenset[str] | None
    lists_tables: bool = False
    own: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()


def parse(connection: DuckDBPyConnection, text: str) -> Statement:
    """Analyses a statement.

    Raises:
        UsageError: The text is not one statement that only reads.
    """
    import duckdb

    try:
        found = connection.extract_statements(text)
    except duckdb.Error as error:
        raise UsageError(WHAT, found=str(error)) from None
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            WHAT,
            found=f"there are {len(found)} statements"
            if len(found) != 1
            else f"it is of the kind {found[0].type.name}",
            advice="Give one SELECT, SHOW TABLES or DESCRIBE; state is only read.",
        )
    parameters = frozenset(found[0].named_parameters)
    (row,) = connection.execute("select json_serialize_sql(?::varchar)", [text]).fetchall()
    tree = json.loads(row[0])
    if tree.get("error"):
        return Statement(text, _named(connection, text), None, parameters=parameters)
    walk = _Walk()
    walk.run(tree["statements"], {})
    if walk.unclear:
        names = {*walk.uses, *_named(connection, text)}
        uses = {name: [Use()] for name in names}
        return Statement(text, uses, None, own=frozenset(walk.own), parameters=parameters)
    columns = None if walk.all_columns else frozenset(walk.columns)
    own = frozenset(walk.own)
    return Statement(text, walk.uses, columns, walk.lists_tables, own, parameters)


def constant_of(connection: DuckDBPyConnection, node: Node, parameters: Sequence[Any]) -> Any:
    """Evaluates an expression without columns in DuckDB.

    Returns:
        ``None`` without a value, or if DuckDB compares its type differently from Python.
    """
    import duckdb

    if node["type"] == "VALUE_PARAMETER":
        number = str(node.get("identifier"))
        if not (number.isascii() and number.isdigit() and 0 < int(number) <= len(parameters)):
            return None
        return parameters[int(number) - 1]
    tree = json.dumps({"error": False, "statements": [{"node": _select(node)}]})
    try:
        found = connection.execute("select * from json_execute_serialized_sql(?)", [tree])
        value, kind = found.fetchall()[0][0], str(found.description[0][1])
    except duckdb.Error:
        return None
    # Values of BIGNUM, JSON and others arrive as texts, but are not equal to the same texts only.
    return None if type(value) is str and kind != "VARCHAR" else value


def _named(connection: DuckDBPyConnection, text: str) -> dict[str, list[Use]]:
    import duckdb

    try:
        return {folded(name): [Use()] for name in connection.get_table_names(text)}
    except duckdb.Error:
        return {}


def _select(node: Node) -> Node:
    return {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [node],
        "from_table": {"type": "EMPTY", "alias": "", "sample": None},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }


class _Walk:
    """Collects the names in a tree.

    Attributes:
        own: See `Statement`.
        unclear: Whether tables may be read that the tree does not name.
    """

    def __init__(self) -> None:
        self.uses: dict[str, list[Use]] = {}
        self.columns: set[str] = set()
        self.all_columns = False
        self.unclear = False
        self.lists_tables = False
        self.own: set[str] = set()
        self._aliases: set[str] = set()

    def run(self, node: Any, equal: Mapping[int, Use]) -> None:
        """Visits a part of the tree, and everything below it.

        Args:
            equal: Conditions on the tables directly in the `SELECT` above, by the identity of their
                nodes.
        """
        if isinstance(node, list):
            for one in node:
                self.run(one, equal)
            return
        if not isinstance(node, dict):
            return
        match node.get("type"):
            case "SELECT_NODE":
                equal = _conditions(node)
            case "BASE_TABLE":
                self._table(node, equal)
            case "TABLE_FUNCTION":
                self.unclear |= _function(node) not in _PLAIN_FUNCTIONS
            case "COLUMN_REF":
                self._column(node)
            case "SHOW_REF":
                self.all_columns = True
                self.lists_tables |= not node.get("query")
            case "STAR" | "POSITIONAL_REFERENCE" | "PIVOT":
                self.all_columns = True
            case "JOIN":
                self.all_columns |= node.get("ref_type") == "NATURAL"
                self.columns |= {folded(str(name)) for name in node.get("using_columns") or ()}
        self.own |= {folded(str(one.get("key", ""))) for one in _ctes(node)}
        for one in node.values():
            if isinstance(one, (dict, list)):
                self.run(one, equal)

    def _table(self, node: Node, equal: Mapping[int, Use]) -> None:
        name = folded(str(node.get("table_name", "")))
        if (node.get("schema_name") or _SCHEMA) != _SCHEMA:
            self.all_columns = self.lists_tables = True  # the catalogue of DuckDB
            return
        self.uses.setdefault(name, []).append(equal.get(id(node), Use()))
        self.all_columns |= bool(node.get("column_name_alias"))
        self._alias(name)
        self._alias(folded(str(node.get("alias") or "")))

    def _alias(self, name: str) -> None:
        # A table's name in place of a column stands for the whole row.
        self._aliases.add(name)
        self.all_columns |= name in self.columns

    def _column(self, node: Node) -> None:
        names = [folded(str(name)) for name in node.get("column_names") or ()]
        self.columns.update(names)
        self.all_columns |= len(names) == 1 and names[0] in self._aliases


def _ctes(node: Node) -> Sequence[Node]:
    ctes = node.get("cte_map")
    found = ctes.get("map") if isinstance(ctes, dict) else None
    return [one for one in found or () if isinstance(one, dict)]


def _function(node: Node) -> str:
    called = node.get("function")
    return folded(str(called.get("function_name", ""))) if isinstance(called, dict) else ""


def _conditions(select: Node) -> dict[int, Use]:
    """Returns the conditions of a `WHERE` on each table in the `FROM`, by identity of the node."""
    if select.get("sample"):
        return {}  # it is taken before the `WHERE`
    tables: list[Node] = []
    others = 0
    for one in _sources(select.get("from_table")):
        if one is None:
            return {}
        if one.get("type") == "BASE_TABLE":
            tables.append(one)
        else:
            others += 1
    names = [_name(one) for one in tables]
    alone = len(tables) == 1 and not others
    found: dict[int, Use] = {}
    equal = list(_equalities(select.get("where_clause")))
    for table, name in zip(tables, names, strict=True):
        if names.count(name) > 1 or table.get("sample") or table.get("column_name_alias"):
            continue
        of_table: dict[ColumnPath, Sequence[Node]] = {}
        for path, values in equal:
            if len(path) > 1 and path[0] == name:
                of_table.setdefault(path[1:], values)
            elif alone:
                of_table.setdefault(path, values)
        found[id(table)] = Use(of_table)
    return found


def _name(table: Node) -> str:
    return folded(str(table.get("alias") or table.get("table_name", "")))


def _sources(node: Any) -> Iterator[Node | None]:
    """Yields the tables that a `FROM` joins; ``None`` for joins that a missing row may change."""
    if not isinstance(node, dict):
        yield None
    elif node.get("type") != "JOIN":
        yield node
    elif node.get("join_type") in _JOINS and node.get("ref_type") in _JOIN_KINDS:
        yield from _sources(node.get("left"))
        yield from _sources(node.get("right"))
    else:
        yield None


def _equalities(node: Any) -> Iterator[tuple[ColumnPath, Sequence[Node]]]:
    """Yields columns with the constant expressions of which each must equal one."""
    if not isinstance(node, dict):
        return
    match node.get("type"):
        case "CONJUNCTION_AND":
            for one in node.get("children") or ():
                yield from _equalities(one)
        case "COMPARE_EQUAL":
            left, right = node.get("left") or {}, node.get("right") or {}
            for column, other in ((left, right), (right, left)):
                if _is_column(column) and _is_constant(other):
                    yield _path(column), [other]
        case "COMPARE_IN":
            column, *values = node.get("children") or [{}]
            if _is_column(column) and values and all(map(_is_constant, values)):
                yield _path(column), values


def _is_column(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "COLUMN_REF"


def _is_constant(node: Any) -> bool:
    if not isinstance(node, dict) or node.get("type") not in _CONSTANTS:
        return False
    return node["type"] != "OPERATOR_CAST" or _is_constant(node.get("child"))


def _path(column: Node) -> ColumnPath:
    return tuple(folded(str(name)) for name in column.get("column_names") or ())
