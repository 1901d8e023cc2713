"""The commands of docs/dashboard.md, run as they stand but for addresses and files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from redis_state.dashboard.lookup import HISTORY_MAX
from redis_state.dashboard.samples import SAMPLES_MAX
from redis_state.dashboard.settings import TOKEN_CHARACTERS_MIN
from redis_state.dashboard.watch import SERIES_MAX
from tests.support.dashboard import Dashboard
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
URL = "redis://localhost:6379/0"


def test_the_commands_run(start_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    server = start_redis(tls=True)
    made = server.certificates
    assert made is not None
    (tmp_path / "token").write_text("0123456789abcdef0123456789")
    files = {"token": tmp_path / "token", "cert.pem": made.certificate, "key.pem": made.key}
    commands = re.findall(r"^```sh\n(.*?)\n```", PAGE, re.DOTALL | re.M)
    assert len(commands) == 2
    for number, command in enumerate(commands):
        words = command.removeprefix(f"redis-state dashboard --url {URL}").split()
        # Tests listen on loopback only.
        arguments = [str(files.get(word, word)).replace("0.0.0.0", "127.0.0.1") for word in words]
        arguments += ["--tls-ca-file", str(made.authority)]
        authority = made.authority if "--serve-cert-file" in words else None
        log = tmp_path / str(number)
        with Dashboard(server.url, *arguments, log=log, authority=authority) as board:
            page = board.get("/login" if authority else "/", Host="state.example.org")
            assert page.status == (200 if authority else 421)


def test_the_page_names_its_limits() -> None:
    assert f"for {SERIES_MAX:,} queries" in PAGE
    assert f"{TOKEN_CHARACTERS_MIN} characters or more" in PAGE
    assert f"last {HISTORY_MAX} values" in PAGE
    assert SAMPLES_MAX * 10 == 3600  # seconds, at the default interval: the last hour
