"""`redis-state maintain`: exit codes, output, signals, and the examples of docs/operations.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import acl, config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.cli.operate import maintain
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.format.rows import Value
from redis_state.maintain import compaction, service
from redis_state.maintain.vanished import LOOKS_APART_MS
from tests.contract.planting import GEN, Planted, family, uid
from tests.contract.test_coordinator_thread import until
from tests.contract.test_maintain import ONE, grown, raw, row, rows
from tests.contract.vanishing import looked_earlier, written_long_ago
from tests.support.redis_server import RedisServer

__all__ = ["raw"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"
URL = "redis://localhost:6379/0"


def run(server: RedisServer, *arguments: str) -> int:
    return main(["maintain", "--url", server.url, *arguments])


def test_once_reports_its_work(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    grown(raw)
    assert run(redis_server, "--once") == 0
    caught = capsys.readouterr()
    assert caught.out.startswith("1 partitions of 1 checkpoints maintained, 0 of them unchanged, ")
    for told in (
        "0 left to other workers",
        "1 snapshots added (",
        "bytes freed",
        "lag 0 versions (0 bytes)",
        "0 problems",
    ):
        assert told in caught.out
    assert "added a snapshot of version 10" in caught.err
    assert run(redis_server, "flights", "--once", "--deep", "--orphans") == 0
    assert run(redis_server, GEN, "--once") == 0


def test_problems_have_a_status_of_their_own(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = grown(raw, versions=2)
    raw.delete(keys.segment(planted.id(0), f"d:2:{uid(2)}"))
    assert run(redis_server, "--once") == PROBLEMS_STATUS
    caught = capsys.readouterr()
    assert re.search(rf"^problem: flights: operator 0 .* d:2:{uid(2)} has 0 of", caught.err, re.M)
    assert "1 problems" in caught.out


def test_alive_file_is_written_while_redis_is_down(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    redis_server.kill()
    command = [sys.executable, "-m", "redis_state", "maintain", "--url", redis_server.url]
    command += ["--interval", "1s", "--deadline", "1s", "--alive-file", str(alive)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until(alive.exists)
            began = alive.stat().st_mtime_ns
            until(lambda: alive.stat().st_mtime_ns > began)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_each_step_inside_of_a_partition_and_of_a_scan_is_a_sign_of_life(
    redis_server: RedisServer,
    raw: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown(raw)
    alive = tmp_path / "alive"
    steps = Counter[str]()

    def step(self: Any, what: str, done: int, total: int) -> None:
        alive.unlink(missing_ok=True)
        real(self, what, done, total)
        assert alive.exists()
        steps[what] += 1

    real = maintain._Steps.step
    monkeypatch.setattr(maintain._Steps, "step", step)
    monkeypatch.setattr(compaction, "BLOCKS_AT_ONCE", 1)
    said = ["--once", "--deep", "--orphans", "--vanished-after", "30d", "--yes"]
    assert run(redis_server, *said, "--alive-file", str(alive)) == 0
    assert steps.keys() >= {
        "adding a snapshot: rows",
        "verifying segments",
        "reading segments",
        "maintaining flights",
        "scanned keys",
        "looking for unused checkpoints",
    }


def test_alive_file_in_a_missing_folder_is_refused(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(redis_server, "--once", "--alive-file", str(tmp_path / "no" / "alive")) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody", "--once"], "there is no such query"),
        (["--once", "--yes"], "has no effect without an age"),
        (["--once", "--vanished-after", "59m", "--yes"], "below one hour"),
        (["--once", "--vanished-after", "59m"], "below one hour"),
    ],
)
def test_wrong_argument_is_named_on_standard_error(
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    assert run(redis_server, *arguments) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("duration", ["0s", "5", "1w", "-1s", "1.5h", "9999999s"])
def test_a_wrong_duration_is_wrong_usage(capsys: pytest.CaptureFixture[str], duration: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["maintain", "--url", URL, f"--interval={duration}"])
    assert ended.value.code == 2
    assert "is not a duration" in capsys.readouterr().err


def test_age_without_yes_changes_nothing_and_two_passes_with_it_purge(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    written_long_ago(raw, grown(raw, versions=2))
    before = raw.keys("*")
    assert run(redis_server, "--once", "--vanished-after", "30d") == 0
    said = f"flights (gen {GEN}): no process serves it, and it was not written, and no run began"
    assert said in capsys.readouterr().err
    assert sorted(raw.keys("*")) == sorted(before)
    arguments = ["--once", "--vanished-after", "30d", "--yes"]
    assert run(redis_server, *arguments) == 0
    caught = capsys.readouterr()
    assert "0 checkpoints purged" in caught.out
    assert said in caught.err.replace("seems to be unused: ", "")
    looked_earlier(raw, minutes=31)
    assert run(redis_server, *arguments) == 0
    caught = capsys.readouterr()
    assert "1 checkpoints purged" in caught.out
    assert f"redis-state purge --gen {GEN} --recall" in caught.err
    assert all(raw.ttl(name) > 0 for name in raw.keys("*"))


def test_a_server_that_is_away_is_an_error_once(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = redis_server.url
    redis_server.stop()
    assert main(["maintain", "--url", url, "--once", "--deadline", "1s"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def started(server: RedisServer, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "redis_state.cli.main", "maintain", "--url", server.url]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_runs_until_it_is_stopped(
    redis_server: RedisServer, raw: redis.Redis, number: signal.Signals
) -> None:
    planted = grown(raw)
    with started(redis_server, "--interval", "1s") as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        passes = [line for line, _ in zip(filter(is_report, lines), range(3), strict=False)]
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert " 1 snapshots added" in passes[0]
    assert " 0 snapshots added" in passes[-1]
    assert raw.get(keys.claim(planted.id(0))) in (b"", None)


def test_several_services_share_the_work_and_one_may_be_killed(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    planted = Planted(raw, family=family(ONE, ONE), partitions=8)
    planted.register()
    model: list[dict[bytes, Value]] = [{} for _ in range(8)]

    def write(versions: range) -> None:
        for version in versions:
            for number in range(8):
                some: dict[bytes, Value] = {row(n): b"%d" % version for n in range(version, 60)}
                planted.delta(number, version, some)
                model[number] |= some

    def all_have_snapshots(version: int) -> bool:
        name = f"s:{version}:{uid(version)}"
        return all(raw.hexists(keys.meta(planted.id(number)), name) for number in range(8))

    write(range(1, 6))
    processes = [started(redis_server, "--interval", "1s") for _ in range(3)]
    try:
        for process in processes:
            assert process.stderr is not None
            assert any(is_report(line) for line in process.stderr)
        until(lambda: all_have_snapshots(5))
        processes[0].kill()
        processes[0].wait(60)
        # A claim of a killed worker would expire in ten minutes; one of a living worker that goes
        # with it here does no harm.
        for name in raw.keys("*:x"):
            raw.delete(name)
        write(range(6, 12))
        until(lambda: all_have_snapshots(11))
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=60)
    assert [process.returncode for process in processes[1:]] == [0, 0]
    client = Client(config.parse({"url": redis_server.url}))
    for number in range(8):
        assert rows(client, planted.id(number), 11) == model[number]
    client.close()


def is_report(line: str) -> bool:
    return "checkpoints maintained" in line


def test_the_service_waits_for_a_server_that_is_away(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with started(server, "--interval", "1s", "--deadline", "1s") as process:
            assert process.stderr is not None
            assert "the pass was not finished" in next(iter(process.stderr))
            os.kill(server.pid, signal.SIGCONT)
            assert any(is_report(line) for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert process.returncode == 0


def test_the_examples_of_the_page_run(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    grown(raw)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 3
    for line in lines:
        words = line.split("#")[0].replace(URL, redis_server.url).split()
        assert words[0] == "redis-state"
        # What runs until a signal comes is run once here.
        extra = ["--once"] if words[1] == "maintain" and "--once" not in words else []
        assert main([*words[1:], *extra]) == 0, line
        capsys.readouterr()


def test_the_page_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["maintain", "--help"])
    page = PAGE.read_text("utf-8")
    connection = (
        "url profile username password-file key-prefix tls-ca-file tls-cert-file tls-key-file"
    )
    known = {*connection.split(), "deadline", "help"}
    for option in set(re.findall(r"--([a-z-]+)", capsys.readouterr().out)) - known:
        assert f"`--{option}" in page, option
    assert f"{service.ORPHANS_EVERY_S / 3600:.0f} h" in page
    assert f"{LOOKS_APART_MS / 60_000:.0f} minutes" in page


def test_the_rights_of_a_maintainer_are_enough(
    redis_server: RedisServer,
    raw: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted = grown(raw)
    raw.pexpire(keys.segment(planted.id(0), f"d:9:{uid(9)}"), 60_000)
    allowed = acl.rules(acl.Role.MAINTAINER, version="7.0")
    raw.execute_command("ACL", "SETUSER", "worker", *allowed, ">secret")  # type: ignore[no-untyped-call]  # its stub
    password = tmp_path / "password"
    password.write_text("secret")
    user = ["--username", "worker", "--password-file", str(password)]
    assert run(redis_server, "--once", "--deep", "--orphans", *user) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert "1 snapshots added" in told
    assert "1 mended" in told
    written_long_ago(raw, planted)
    for _ in range(2):
        assert run(redis_server, "--once", "--vanished-after", "30d", "--yes", *user) == 0
        looked_earlier(raw, minutes=31)
    assert "1 checkpoints purged" in capsys.readouterr().out
    which = ["purge", "--url", redis_server.url, "--gen", GEN, *user]
    assert main([*which, "--recall"]) == 0
    assert main([*which, "--yes"]) == 0
    assert main([*which, "--yes", "--now"]) == 0
    assert raw.keys("*") == []
    grown(raw)
    for missing in ("hexists", "hgetall"):
        # The first is used inside a script only.
        raw.execute_command("ACL", "SETUSER", "worker", f"-{missing}")  # type: ignore[no-untyped-call]  # its stub
        assert run(redis_server, "--once", *user) == 1
        assert "PERMISSION" in capsys.readouterr().err
