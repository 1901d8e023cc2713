"""`python -m tests.faults.topologies` runs what it says, and counts what did not pass."""

from __future__ import annotations

from collections import Counter

from tests.faults.topologies import QUERIES, ROOT, STORES, outcomes, table

REPORT = """
<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_one[x-1]"><system-out>text</system-out></testcase>
<testcase classname="tests.a.test_b" name="test_one[x-2]"><failure>no</failure></testcase>
<testcase classname="tests.a.test_b" name="test_two"><skipped/></testcase>
<testcase classname="tests.a.test_b" name="test_three"><error>no</error></testcase>
<testcase classname="tests.a.test_b" name="test_four"/>
</testsuite></testsuites>
"""


def test_each_fault_has_tests_that_exist() -> None:
    for names in (*STORES.values(), *QUERIES.values()):
        assert names
        for name in names:
            file, function = name.split("::")
            assert f"def {function}(" in (ROOT / file).read_text(), name


def test_skipped_or_erroneous_tests_count_as_failed() -> None:
    assert outcomes(REPORT) == {
        "tests/a/test_b.py::test_one": ["passed", "failed"],
        "tests/a/test_b.py::test_two": ["failed"],
        "tests/a/test_b.py::test_three": ["failed"],
        "tests/a/test_b.py::test_four": ["passed"],
    }


def test_the_table_has_a_row_for_each_fault() -> None:
    found = Counter({("cut", "passed"): 3, ("cut", "failed"): 1})
    rows = table({"cut": ("a",), "late": ("b",)}, found, rounds=2, minutes=1).splitlines()
    assert rows[-2:] == ["| cut | 2 | 4 | 1 |", "| late | 2 | 0 | 0 |"]
