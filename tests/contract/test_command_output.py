"""Output of commands: odd rows, files, full disks and narrow terminals."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redis_state.cli.main import build_parser
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import Types
from redis_state.errors import ConfigError
from redis_state.live import connect
from redis_state.types.schema import Atomic, Field, Map, Struct
from tests.contract.planting import Planted, family, schema
from tests.contract.test_reading_commands import Run, failed, narrow, objects, planted, run
from tests.support.redis_server import RedisServer

__all__ = ["narrow", "planted", "run"]

ODD = family(
    schema(k="string", d="double"),
    schema(
        few="byte",
        price="decimal(38,10)",
        note="string",
    ),
)
ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"k": "a", "d": math.nan}, {"few": 5, "price": Decimal("1.5"), "note": None}),
    ({"k": "", "d": 0.5}, {"few": 6, "price": None, "note": ""}),
    ({"k": None, "d": None}, {"few": None, "price": Decimal(-2), "note": 'say "a,b"'}),
]


@pytest.fixture
def odd(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client(), ODD, partitions=1, gen="d" * 32, name="odd")
    planted.register()
    planted.commit(1, ROWS)
    return planted


@pytest.mark.usefixtures("odd")
def test_files_have_the_types_of_the_state(
    run: Run, redis_server: RedisServer, tmp_path: Path
) -> None:
    with connect(redis_server.url) as reader:
        state = reader.query("odd").operator()
        wanted = state.to_arrow()
    path = str(tmp_path / "odd.parquet")

    def written(*words: str) -> pa.Table:
        assert run(*words, "--format", "parquet", "--output", path) == ""
        return pq.read_table(path)

    found = written("scan", "odd")
    assert found.schema.equals(wanted.schema)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, wanted.to_pylist()))
    few = written("scan", "odd", "--columns", "note,few", "--limit", "1")
    assert few.schema.equals(wanted.select(["note", "few"]).schema)
    none = written("scan", "odd", "k=nobody")
    assert (none.num_rows, none.schema) == (0, wanted.schema)
    values = pa.struct([wanted.schema.field(name) for name in ("few", "price", "note")])
    past = written("history", "odd", "k=", "d=0.5")
    assert past.schema.field("value").type == values
    assert past.column("value").to_pylist() == [{"few": 6, "price": None, "note": ""}]
    changed = written("diff", "odd", "-1", "0")
    assert changed.schema.field("after").type == values
    assert changed.num_rows == len(ROWS)
    answer = written("sql", "select few, price from odd where k = 'nobody'")
    assert answer.schema.equals(wanted.select(["few", "price"]).schema)


def test_a_map_has_its_own_keys_in_a_file(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"m": {"q": 5}}, {"m": {"y": 6, "z": None}}, {"m": None}]
    path = tmp_path / "maps.parquet"
    types = {"m": Map(Atomic("string", 0), Atomic("byte", 1))}
    arguments = argparse.Namespace(format="parquet", output=str(path))
    printing.emit(arguments, Sheet(rows, types=lambda: types))
    found = pq.read_table(path).column("m")
    assert found.type == pa.map_(pa.string(), pa.int8())
    assert found.to_pylist() == [[("q", 5)], [("y", 6), ("z", None)], None]


@pytest.mark.usefixtures("odd")
def test_csv_tells_null_from_an_empty_text(run: Run) -> None:
    lines = run("scan", "odd", "--format", "csv", "--columns", "k,note,few").splitlines()
    assert lines[0] == "k,note,few"
    assert sorted(lines[1:]) == [
        '"","",6',
        ',"say ""a,b""",',
        "a,,5",
    ]
    assert run("scan", "odd", "--format", "csv", "k=nobody", "--columns", "d,k") == ("d,k\n")
    assert run("sql", "select k from odd where k = 'nobody'", "--format", "csv") == "k\n"
    # An empty line would be no row to who reads it.
    alone = run("scan", "odd", "--format", "csv", "--columns", "note").splitlines()
    assert sorted(alone) == ['""', '""', '"say ""a,b"""', "note"]


def test_csv_is_written_as_rows_come(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3):
            assert len(written.getvalue().splitlines()) == (number + 1 if number else 0)
            yield {"n": number, "square": number**2}

    monkeypatch.setattr(sys, "stdout", written)
    printing.emit(argparse.Namespace(format="csv", output=None), Sheet(rows()))
    assert written.getvalue() == "n,square\n0,0\n1,1\n2,4\n"


def test_values_of_other_columns_keep_their_names_in_a_file(tmp_path: Path) -> None:
    """A variable had other columns before, or had no time to live."""
    long = Atomic("long", 8)
    types: Types = {"value": Struct((Field("b", long), Field("c", long))), "ttl": long}
    rows: list[dict[str, Any]] = [
        {"value": {"b": 1, "c": 2}, "ttl": 3},
        {"value": {"a": 4, "b": 5}},
        {"b": 6, "c": 7},
    ]
    path = tmp_path / "values.parquet"
    printing.emit(
        argparse.Namespace(format="parquet", output=str(path)), Sheet(rows, types=lambda: types)
    )
    found = [
        {name: cell for name, cell in row.items() if cell is not None}
        for row in pq.read_table(path).to_pylist()
    ]
    assert found == [
        {"value": {"b": 1, "c": 2, "a": None}, "ttl": 3},
        {"value": {"b": 5, "c": None, "a": 4}},
        {"b": 6, "c": 7},
    ]


@pytest.mark.usefixtures("odd")
def test_nan_is_a_value_to_look_for(run: Run, redis_server: RedisServer) -> None:
    assert [row["note"] for row in objects(run("scan", "odd", "k=a", "d=nan"))] == [None]
    with connect(redis_server.url) as reader:
        state = reader.query("odd").operator()
        for found in (
            state.scan(where={"d": math.nan}),
            state.scan(prefix={"k": "a", "d": math.nan}),
            state.to_arrow(where={"d": math.nan}).to_pylist(),
        ):
            assert [row["k"] for row in found] == ["a"]


def test_columns_of_one_name_are_all_there(run: Run) -> None:
    statement = 'select 1 as a, 2 as a, 3 as "a.2", 4 as b'
    assert objects(run("sql", statement)) == [{"a": 1, "a.3": 2, "a.2": 3, "b": 4}]


@pytest.mark.usefixtures("odd")
def test_options_may_stand_between_the_words(run: Run) -> None:
    assert len(objects(run("history", "odd", "--limit", "1", "k=a", "d=nan"))) == 1
    assert len(objects(run("diff", "odd", "-1", "--operator", "0", "0"))) == len(ROWS)
    found = build_parser().parse_args(["get", "odd", "--at", "3", "--", "-k=a", "--d=1"])
    assert found.key == ["-k=a", "--d=1"]


def test_invalid_version_is_refused_by_name(redis_server: RedisServer, planted: Planted) -> None:
    assert "'version' is not the number of a version" in failed(
        redis_server, "get", "flights", "--version", "-1", "carrier=C1"
    )
    with connect(redis_server.url) as reader:
        query = reader.query(planted.gen)
        for version in (-1, True, 1.5, "1"):
            with pytest.raises(ConfigError, match="not the number of a version"):
                query.operator().count(version=version)  # type: ignore[arg-type]
        assert query.view(version=2).operator().count() == 8
        assert query.operator().view(version=1).get({"carrier": "C0"})["count"] == 1


def test_a_text_is_no_list(redis_server: RedisServer, planted: Planted) -> None:
    assert planted.name in ("flights",)
    assert "its value is not of type string" in failed(
        redis_server, "get", "flights", 'carrier:=["C1"]'
    )


@pytest.mark.usefixtures("planted")
def test_an_output_that_is_full_ends_with_a_message(redis_server: RedisServer) -> None:
    for words in (["queries"], ["scan", "flights"], ["get", "flights", "carrier=C1"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "redis_state", *words, "--url", redis_server.url],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=60,
            )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "The output could not be written: No space left on device."
        )


@pytest.mark.usefixtures("planted")
def test_a_file_below_a_file_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "rows")
    said = failed(redis_server, "scan", "flights", "--format", "csv", "--output", output)
    assert "Not a directory. Name another --output." in said


@pytest.mark.usefixtures("planted")
def test_closed_streams_are_no_fault(redis_server: RedisServer) -> None:
    command = f"{sys.executable} -m redis_state queries --url {redis_server.url}"
    done = subprocess.run(
        ["sh", "-c", f"{command} <&- >&-"], stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_of_few_letters(redis_server: RedisServer, planted: Planted) -> None:
    planted.commit(4, [({"carrier": "ü"}, {"count": 1, "total": 0.5})])
    done = subprocess.run(
        [sys.executable, "-m", "redis_state", "scan", "flights", "carrier=ü",
         "--at", "latest", "--url", redis_server.url],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
        timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout.decode("ascii"))["carrier"] == "ü"
