"""Statistics and pages of the benchmark."""

from __future__ import annotations

import pytest

from tests.bench.page import replace_section
from tests.bench.pairs import row
from tests.bench.ratio import ratio


def test_ratio_is_of_medians_and_lies_in_its_interval() -> None:
    found = ratio([1.0, 2.0, 3.0, 2.0, 2.0], [4.0, 4.0, 5.0, 3.0, 4.0])
    assert found is not None
    assert found.point == 0.5
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.point <= found.high


def test_few_pairs_have_no_interval() -> None:
    found = ratio([1.0], [4.0])
    assert found is not None
    assert (found.point, found.low, found.high) == (0.25, None, None)


def test_missing_baseline_has_no_ratio() -> None:
    assert ratio([1.0], [0.0]) is None


def test_result_line_states_whether_the_aim_is_met() -> None:
    reached = row("batch", [103.0], [100.0], 1.03)
    assert reached == "| batch | 103.00 | 100.00 | 1.030 | ≤ 1.03 reached |"
    assert row("batch", [104.0], [100.0], 1.03).endswith("| 1.040 | ≤ 1.03 **missed** |")
    assert row("batch", [1.0], [4.0], None).endswith("| 0.250 |  |")


def test_only_the_section_of_the_command_is_replaced() -> None:
    page = "a\n<!-- begin: x -->\nold\n<!-- end: x -->\nb <!-- begin: y --><!-- end: y -->\n"
    assert replace_section(page, "x", "new\n") == page.replace("old", "new")


def test_prose_of_a_section_is_wrapped_and_tables_are_not() -> None:
    row = "| " + "cell " * 30 + "|"
    page = replace_section("<!-- begin: x --><!-- end: x -->", "x", "word " * 30 + "\n\n" + row)
    prose = page.splitlines()[1:3]
    assert " ".join(prose) == ("word " * 30).strip()
    assert max(map(len, prose)) <= 100
    assert page.splitlines()[4] == row


def test_a_page_without_the_section_is_an_error() -> None:
    with pytest.raises(ValueError, match="begin: z"):
        replace_section("nothing", "z", "new")
