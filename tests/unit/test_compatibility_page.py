"""The table of the compatibility page: written, read back, compared."""

from __future__ import annotations

from typing import Any

import pytest

from tools import compatibility

HEAD = "| option | 4.0 | 4.1 | 4.2 | 4.3"
PAGE = "before\n<!-- table: made by `make compatibility` -->\n<!-- end of table -->\nafter\n"


def row(
    operator: str,
    option: str,
    status: str = "green",
    reason: str = "",
    *,
    column: str = "",
) -> dict[str, Any]:
    test = f"tests/spark/test_{'column' if column else 'operators'}.py::test_it"
    return {
        "operator": operator,
        "option": option,
        "status": status,
        "reason": reason,
        "test": test,
        "column": column,
    }


def run(*rows: dict[str, Any], spark: str = "4.2.1") -> dict[str, Any]:
    return {"spark": spark, "python": "3.11.7", "server": "Redis 7.0.15", "rows": list(rows)}


def page(*columns: tuple[str, dict[str, Any]], text: str = PAGE) -> str:
    table = compatibility.read_page(text)
    for minor, column in columns:
        table.replace(minor, column, f"pyspark {column['spark']}")
    return compatibility.write_page(text, table)


def test_new_column_is_inserted_and_others_are_kept() -> None:
    first = page(("4.2", run(row("join", "inner"), row("limit", ""))))
    assert first.startswith("before\n")
    assert first.endswith("-->\nafter\n")
    newer = run(row("join", "inner", "refused", "not there"), spark="4.3.0")
    lines = page(("4.3", newer), text=first).splitlines()
    group = lines.index("**join** (`spark/test_operators.py`)")
    assert lines[group + 2] == f"{HEAD} |"
    assert lines[group + 4] == "| inner | – | – | green | (1) |"
    group = lines.index("**limit** (`spark/test_operators.py`)")
    assert lines[group + 2] == f"{HEAD} |"
    assert lines[group + 4] == "| – | – | – | green | – |"
    assert "- (1): Spark refuses: not there" in lines
    assert "- Spark 4.2: pyspark 4.2.1" in lines
    assert "- Spark 4.3: pyspark 4.3.0" in lines


@pytest.mark.parametrize("column", compatibility.OF_NEWEST)
def test_what_the_newest_minor_has_alone_is_in_a_column_of_its_own(column: str) -> None:
    both = run(row("limit", "", column=column), row("limit", ""), spark="4.3.0")
    alone = row("windows", "", "refused", "not there", column=column)
    both["rows"].append(alone)
    text = page(("4.3", both))
    lines = text.splitlines()
    group = lines.index("**limit** (`spark/test_operators.py`)")
    assert lines[group + 2] == f"{HEAD} | {column} |"
    assert lines[group + 4] == "| – | – | – | – | green | green |"
    group = lines.index("**windows** (`spark/test_column.py`)")
    assert lines[group + 2] == f"{HEAD} | {column} |"
    assert lines[group + 4] == "| – | – | – | – | – | (1) |"
    assert f"- {compatibility.OF_NEWEST[column]}: pyspark 4.3.0" in lines
    assert compatibility.differences(both, text) == []
    other = run(row("limit", "", "red", column=column), spark="4.3.0")
    title = compatibility.OF_NEWEST[column]
    assert compatibility.differences(other, text) == [
        f"limit,  in the column {title}: this run says **red**, the page green",
    ]
    older = page(("4.2", run(row("limit", ""))), text=text).splitlines()
    assert "| – | – | – | green | green | green |" in older
    newer = page(("4.3", run(row("limit", ""), spark="4.3.1")), text=text).splitlines()
    assert "| – | – | – | – | green |" in newer


def test_rows_of_one_operator_stay_together() -> None:
    text = page(("4.2", run(row("join", "inner"), row("limit", ""))))
    later = page(("4.3", run(row("limit", ""), row("join", "outer"), spark="4.3.0")), text=text)
    assert later.count("**join**") == 1


def test_long_note_is_read_back_as_it_was() -> None:
    reason = "a reason of many words " * 8 + "(`some text of the error, with blanks`)"
    refused = run(row("join", "inner", "refused", reason))
    text = page(("4.2", refused))
    assert max(map(len, text.splitlines())) <= 100
    assert compatibility.differences(refused, text) == []


def test_row_without_a_test_is_removed() -> None:
    text = page(("4.2", run(row("join", "inner"))))
    assert "join" not in page(("4.2", run(row("limit", ""))), text=text)


def test_partial_run_keeps_the_other_cells() -> None:
    table = compatibility.read_page(page(("4.2", run(row("join", "inner"), row("limit", "")))))
    some = run(row("limit", "", "red"), row("upgrade", "", "absent", "there is none before"))
    table.merge(some, "pyspark 4.2.2")
    assert {key: cells["4.2"] for key, cells in table.rows.items()} == {
        ("join", "inner"): "green",
        ("limit", ""): "**red**",
        ("upgrade", ""): "there is none before",
    }
    assert table.ran_with == {"4.2": "pyspark 4.2.2"}


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_of_several_tests_counts(order: int) -> None:
    rows = [row("join", "inner", status) for status in ("green", "red", "refused")][::order]
    assert compatibility.cells_of(run(*rows)) == {(("join", "inner"), "4.2"): "**red**"}


def test_contradicting_run_is_named() -> None:
    text = page(("4.2", run(row("join", "inner"), row("join", "outer"))))
    same = run(row("join", "inner"))
    assert compatibility.differences(same, text) == []
    other = run(row("join", "inner", "red"), row("limit", ""))
    assert compatibility.differences(other, text) == [
        "join, inner: this run says **red**, the page green",
        "limit, : this run says green, the page nothing",
    ]


def test_a_page_without_the_lines_is_an_error() -> None:
    with pytest.raises(SystemExit, match="has no lines"):
        compatibility.read_page("nothing here")
