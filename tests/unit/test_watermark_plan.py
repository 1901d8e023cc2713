"""Finding the watermarks of a plan by the tree that Spark prints."""

from __future__ import annotations

import pytest

from redis_state.spark.processor.watermark_plan import _watermarks_in

_ONE = """\
~Project [at#0-T60000ms, value#1L]
+- ~Filter (value#1L > cast(1 as bigint))
   +- ~EventTimeWatermark 4aab5327-e13e-4572-9b00-c145fc49e8e3, at#0: timestamp, 1 minutes
      +- ~StreamingRelationV2 rate, []
"""
_BEHIND_A_UNION = """\
EventTimeWatermark at#0: timestamp, 1 minutes
+- Union false, false
   :- StreamingRelation rate, [at#0]
   +- StreamingRelation rate, [at#2]
"""
_OF_A_BRANCH = """\
~Union false, false
:- ~EventTimeWatermark 4aab5327, at#0: timestamp, 1 minutes
:  +- ~StreamingRelationV2 rate, []
+- ~StreamingRelationV2 rate, []
"""
_OF_BOTH_BRANCHES = """\
~Union false, false
:- ~EventTimeWatermark 4aab5327, at#0: timestamp, 1 minutes
:  +- ~StreamingRelationV2 rate, []
+- ~Project [at#2-T60000ms AS at#6-T60000ms]
   +- ~EventTimeWatermark e91bea23, at#2: timestamp, 2 minutes
      +- ~StreamingRelationV2 rate, []
"""
_BESIDE_A_UNION = """\
Join Inner, (value#1L = value#3L)
:- Union false, false
:  :- LocalRelation [value#1L]
:  +- LocalRelation [value#5L]
+- EventTimeWatermark at#0: timestamp, 1 minutes
   +- StreamingRelation rate, [at#0]
"""


@pytest.mark.parametrize(
    ("tree", "count", "partial"),
    [
        (_ONE, 1, False),
        (_BEHIND_A_UNION, 1, False),
        (_OF_A_BRANCH, 1, True),
        (_OF_BOTH_BRANCHES, 2, True),
        (_BESIDE_A_UNION, 1, False),
    ],
)
def test_watermarks_of_a_plan_are_counted(tree: str, count: int, partial: bool) -> None:
    assert _watermarks_in(tree) == (count, partial)
