"""Finds the watermark of a processor's timers in the plan of a DataFrame."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redis_state.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DELAY = "spark.watermarkDelayMs"
_TIMES = ("timestamp", "timestamp_ntz")
_NODE = re.compile(r"^([\s:+|-]*)[~']?(\w+)")
_ANALYZED = "== Analyzed Logical Plan =="


def watermark_of_plan(df: DataFrame, what: str) -> tuple[str, int]:
    """Returns the column with the watermark, and its delay in ms.

    Spark has a watermark for each `withWatermark`, and the query uses the least (Spark class
    `WatermarkTracker`). A task sees the rows behind all of them and cannot tell them apart. So only
    one watermark is supported: that of all rows.

    Args:
        df: A streaming DataFrame.
        what: The call, for errors.

    Raises:
        UsageError: The DataFrame has no watermark or several, or rows without one.
    """
    found = [
        (field.name, int(field.metadata[_DELAY]))
        for field in df.schema
        # window() copies the watermark of its times to itself.
        if _DELAY in (field.metadata or {}) and field.dataType.typeName() in _TIMES
    ]
    if len(found) != 1:
        raise UsageError(
            what,
            found="the time mode is EventTime, and the DataFrame has no watermark"
            if not found
            else f"the columns {', '.join(name for name, _ in found)} have a watermark each",
            advice="Call df.withWatermark for the column that timers use, and for no other.",
        )
    count, partial = _watermarks_in(_analyzed(df))
    if count > 1 or partial:
        raise UsageError(
            what,
            found=f"the DataFrame comes from {count} calls of withWatermark"
            if count > 1
            else "only some of the united streams have a watermark",
            advice=(
                "Spark uses the slowest of several watermarks, and transform_with_state has one. "
                "Remove withWatermark from the single streams and call it once, after the union "
                "or join, with a delay that allows for the slowest stream."
            ),
        )
    return found[0]


def _analyzed(df: DataFrame) -> str:
    """Returns the tree of the analyzed plan, as Spark prints it."""
    if hasattr(df, "_jdf"):
        return str(df._jdf.queryExecution().analyzed().toString())
    # Spark Connect has no other access to a resolved plan.
    sections: str = df._explain_string(extended=True)  # type: ignore[operator]
    return sections.split(_ANALYZED, 1)[-1].split("\n== ", 1)[0]


def _watermarks_in(tree: str) -> tuple[int, bool]:
    """Counts the watermarks of a plan; true if one of them covers only a part of a union."""
    count, partial = 0, False
    above: list[tuple[int, str]] = []
    for line in tree.splitlines():
        node = _NODE.match(line)
        if node is None:
            continue
        depth, name = len(node[1]), node[2]
        while above and above[-1][0] >= depth:
            above.pop()
        if name == "EventTimeWatermark":
            count += 1
            partial = partial or any(one == "Union" for _, one in above)
        above.append((depth, name))
    return count, partial
