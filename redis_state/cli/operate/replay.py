"""`redis-state replay`: runs a batch of production again with other code."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.checkpoint import add_checkpoint, folder_of, open_folder
from redis_state.cli.arguments.connection import (
    ProgressLine,
    add_arguments,
    config_of,
    options_of,
)
from redis_state.cli.arguments.session import add_session_arguments, session_of
from redis_state.cli.help import example
from redis_state.replay.code_file import FUNCTION, function_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from redis_state.cli.command import Subparsers
    from redis_state.replay.replay import Replayed

_SHOWN = 20


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "replay",
        help="run a batch of production again with changed code, beside production",
        description=(
            "Fork the state before a batch, run only that batch, with the offsets that "
            f"production read, and with the function `{FUNCTION}(spark, replay)` of a file, and "
            "print what differs from production in the state and in the output. Production's "
            "checkpoint and state do not change. The function returns a DataStreamWriter that is "
            "not started; its sink, trigger and checkpoint are replaced. A Spark session of this "
            "process runs the batch, with the installed pyspark. Exit status 1: something differs."
        ),
        epilog=example(
            "redis-state replay --checkpoint /data/flights --batch 41 --code new.py "
            "--url redis://localhost:6379/0",
        ),
    )
    add_checkpoint(parser, required=True)
    parser.add_argument(
        "--batch", required=True, type=int, metavar="N", help="a batch that production committed"
    )
    parser.add_argument(
        "--code", required=True, metavar="FILE", help="Python file with the changed query"
    )
    parser.add_argument(
        "--production",
        metavar="FOLDER",
        help="folder that production's file sink writes, or with the rows of this batch alone: "
        "compares the rows, too",
    )
    parser.add_argument(
        "--format", default="parquet", help="format of these files (default: parquet)"
    )
    parser.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="a folder that does not exist, for the fork and the output (default: a temporary one)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the fork and the output behind")
    parser.add_argument(
        "--limit",
        type=int,
        default=_SHOWN,
        metavar="N",
        help=f"print so many keys and rows that differ (default: {_SHOWN})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_session_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the batch and prints the differences."""
    from redis_state.replay.replay import ReplayRequest, replay_with

    build = function_in(arguments.code)
    config = config_of(arguments)
    folder_of(arguments)
    spark = session_of(arguments, options_of(arguments), name="redis-state replay")
    line = ProgressLine()
    request = ReplayRequest(
        arguments.batch,
        arguments.checkpoint,
        arguments.production,
        arguments.format,
        arguments.scratch,
        arguments.keep,
    )
    try:
        with replay_with(
            spark,
            config,
            build,
            request,
            open_folder=partial(open_folder, arguments),
            progress=line,
        ) as replayed:
            line.end()
            found = _report(replayed, limit=max(0, arguments.limit))
    finally:
        line.end()
        spark.stop()
    print(json.dumps(found, default=str) if arguments.json else _text(found))
    return 0 if found["same"] else 1


def _report(replayed: Replayed, *, limit: int) -> dict[str, Any]:
    state, output = replayed.state, replayed.produced
    found: dict[str, Any] = {
        "batch": replayed.batch,
        "input_rows": replayed.input_rows,
        "output_rows": replayed.output.count(),
        "state": [
            {
                "name": one.name,
                "operator": one.store[0],
                "store": one.store[1],
                "family": one.store[2],
                "changed_in_production": one.produced,
                "changed_in_replay": one.replayed,
                "different": one.different,
            }
            for one in state.stores
        ],
        "keys": [
            {"key": one.key, "production": one.produced, "replay": one.replayed}
            for one in state.keys[:limit]
        ],
        "output": None,
    }
    different = 0
    if output is not None:
        found["output"] = {
            "only_in_replay": output.only_replayed.count(),
            "only_in_production": output.only_produced.count(),
            "rows_of_replay": _rows(output.only_replayed, limit),
            "rows_of_production": _rows(output.only_produced, limit),
        }
        different = found["output"]["only_in_replay"] + found["output"]["only_in_production"]
    found["same"] = state.same and not different
    return found


def _rows(frame: DataFrame, limit: int) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.take(limit)]


def _place(one: dict[str, Any]) -> str:
    of = f"Python store {one['name']!r} " if one["name"] else ""
    return f"{of}operator {one['operator']} store {one['store']} family {one['family']}"


def _text(found: dict[str, Any]) -> str:
    lines = [
        f"batch {found['batch']}: {found['input_rows']:,} rows read, "
        f"{found['output_rows']:,} rows written"
    ]
    lines += [
        f"{_place(one)}: "
        f"{one['changed_in_production']:,} keys changed in production, "
        f"{one['changed_in_replay']:,} in the replay; {one['different']:,} differ"
        for one in found["state"]
    ]
    lines += [
        f"  {one['key']}: production {one['production']}, replay {one['replay']}"
        for one in found["keys"]
    ]
    if (output := found["output"]) is not None:
        lines.append(
            f"output: {output['only_in_production']:,} rows only in production, "
            f"{output['only_in_replay']:,} only in the replay"
        )
        lines += [f"  production: {row}" for row in output["rows_of_production"]]
        lines += [f"  replay: {row}" for row in output["rows_of_replay"]]
    lines.append("nothing differs" if found["same"] else "the change makes a difference")
    return "\n".join(lines)
