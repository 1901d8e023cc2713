"""The dashboard over HTTP: its pages, a key, and what each state of Redis looks like."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

from redis_state import acl, connect
from redis_state.acl import Role
from redis_state.cli.main import main
from redis_state.testing import ProcessorTest
from tests.contract.planting import GEN, Planted
from tests.contract.processors import INPUT, OUTPUT, Variables
from tests.support.dashboard import Answer, Dashboard, serving, write_query
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

StartRedis = Callable[..., RedisServer]
HOSTS = ("worker-1", "worker-2", "worker-1")
COLUMNS = [
    "Query",
    "State",
    "Batch",
    "Rows",
    "Size",
    "Served",
    "Lag",
    "Last written (UTC)",
    "Problems",
]
SECRET = "top-secret-customer"


@dataclass(frozen=True)
class Scene:
    """A dashboard of three queries: one of Spark's layout, one that is served, one with markup."""

    url: str
    board: Dashboard
    orders: str

    def look_up(self, gen: str, **fields: str) -> Answer:
        """Sends the form of a key; columns are named by their number."""
        named = {
            re.sub(r"^(column|null)(\d)$", r"\1.\2", name): text for name, text in fields.items()
        }
        return self.board.post(f"/query/{gen}/key", named)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    log = tmp_path_factory.mktemp("dashboard") / "log"
    with RedisServer() as server:
        planted = Planted(server.client())
        planted.register()
        planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
        planted.commit(2, [({"carrier": "UA"}, {"count": 2, "total": 1.5})])
        rows: dict[object, object] = {SECRET: {"n": 41}, ("de", 7): [1, 2], "long": "x" * 70_000}
        write_query(
            server.url,
            "orders",
            partitions=3,
            rows=lambda partition, version: rows if partition == 1 else {version: "row"},
        )
        write_query(server.url, "<script>alert('no')</script>")
        with serving(server.url, "orders", HOSTS), Dashboard(server.url, log=log) as board:
            with connect(server.url) as reader:
                gens = {query.name: query.gen for query in reader.queries()}
            yield Scene(server.url, board, gens["orders"])


def names(answer: Answer) -> list[str]:
    (table,) = answer.page.tables.values()
    assert [cell.strip() for cell in table[0]] == COLUMNS
    return [row[0] for row in table[1:]]


def test_index_page_lists_all_queries(scene: Scene) -> None:
    answer = scene.board.get("/")
    assert answer.status == 200
    (table,) = answer.page.tables.values()
    assert names(answer) == ["<script>alert('no')</script>", "flights", "orders"]
    flights, orders = table[2:]
    assert flights[1:4] == ["quiet", "1", "1"]
    assert orders[1:4] == ["alive", "version 2", "7"]
    assert orders[5:7] == ["3 of 3", "2"]
    assert "no value" not in answer.body
    assert "<script" not in answer.body
    assert scene.url in answer.text


def test_index_page_sorts_and_searches(scene: Scene) -> None:
    board = scene.board
    assert names(board.get("/?sort=-rows"))[0] == "orders"
    assert names(board.get("/?sort=rows"))[-1] == "orders"
    assert names(board.get("/?sort=nonsense&refresh=oops")) == names(board.get("/"))
    assert names(board.get("/?search=LIGHT")) == ["flights"]
    assert names(board.get(f"/?search={scene.orders}")) == ["orders"]
    nothing = board.get("/?search=%22%3E%3Cb%3E")
    assert nothing.status == 200
    assert "<b>" not in nothing.body
    assert "No query has" in nothing.text
    heads = [
        of["aria-sort"] for tag, of in board.get("/?sort=-rows").page.elements if "aria-sort" in of
    ]
    assert heads.count("descending") == 1
    assert 'http-equiv="refresh"' in board.get("/?refresh=5").body
    assert 'http-equiv="refresh"' not in board.get("/").body


def test_each_query_has_a_page(scene: Scene) -> None:
    answer = scene.board.get(f"/query/{scene.orders}")
    assert answer.status == 200
    tables = answer.page.tables
    rows, size = (table for caption, table in tables.items() if "by partition" in caption)
    assert rows == [["First partition of the row", "+0", "+1", "+2"], ["0", "2", "3", "2"]]
    assert all(re.fullmatch(r"[\d.]+k?", cell) for cell in size[1][1:])
    owners = tables["Processes that reported within the last minute"]
    assert owners[1:] == [["worker-1", "1", "2"], ["worker-2", "1", "1"]]
    every = tables["Partitions of operator 0, store default"]
    assert [row[:6] for row in every[2:3]] == [["1", "2", "2", "2 of 100", "3", every[2][5]]]
    assert "Committing a version" in answer.text
    headings = [tag for tag, _ in answer.page.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1


def test_charts_appear_after_the_second_poll(scene: Scene) -> None:
    path = f"/query/{scene.orders}"
    wait_until(lambda: scene.board.get(path).body.count("<svg") == 4, "four lines")
    for tag, attributes in scene.board.get(path).page.elements:
        assert tag not in ("style", "script")
        assert "style" not in attributes


def test_spark_key_is_looked_up(scene: Scene) -> None:
    form = scene.board.get(f"/query/{GEN}/key")
    assert form.status == 200
    assert "carrier string" in form.text
    found = scene.look_up(GEN, column0="UA", version="")
    assert found.status == 200
    assert '{ "count": 2, "total": 1.5 }' in found.text
    (history,) = found.page.tables.values()
    assert [row[0] for row in history[1:]] == ["1", "0"]
    assert '"count": 1' in history[2][1]
    assert '{ "count": 1, "total": 0.5 }' in scene.look_up(GEN, column0="UA", version="1").text
    assert "There is no such key" in scene.look_up(GEN, column0="??").text
    assert "There is no such key" in scene.look_up(GEN, column0="UA", null0="on").text
    missing = scene.look_up(GEN)
    assert missing.status == 400
    assert "0 columns were given, and the key has 1" in missing.text
    assert scene.look_up(GEN, column0="UA", version="3").status == 410
    assert scene.look_up(GEN, column0="UA", version="no").status == 400
    assert scene.look_up(GEN, column0="UA", operator="7").status == 404


def test_python_key_is_looked_up(scene: Scene) -> None:
    found = scene.look_up(scene.orders, column0=SECRET)
    assert found.status == 200
    assert '{ "n": 41 }' in found.text
    assert "[ 1, 2 ]" in scene.look_up(scene.orders, column0=':=["de", 7]').text
    malformed = scene.look_up(scene.orders, column0=":=[")
    assert malformed.status == 400
    assert "it is not JSON" in malformed.text
    long = scene.look_up(scene.orders, column0="long")
    assert "more characters are omitted" in long.text
    assert len(long.body) < 80_000


def test_processor_key_is_looked_up(redis_server: RedisServer, tmp_path: Path) -> None:
    at = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    with ProcessorTest(
        Variables(), key="user", input=INPUT, schema=OUTPUT, time_mode="EventTime",
        event_time="ts", url=redis_server.url,
    ) as test:  # fmt: skip
        test.run([("ann", at, 1), ("ann", at, 4)])
        test.keys("count")  # opens the version, which confirms it
        with (
            connect(redis_server.url) as reader,
            Dashboard(redis_server.url, log=tmp_path / "log") as board,
        ):
            (query,) = reader.queries()
            path = f"/query/{query.gen}/key"
            choice = board.get(path)
            assert "choose one" in choice.text
            links = [of["href"] or "" for tag, of in choice.page.elements if tag == "a"]
            count = next(link for link in links if link.endswith("family=count"))
            assert "user string" in board.get(count).text
            asked = {"column.0": "ann", "family": "count"}
            assert '{ "n": 2 }' in board.post(path, asked).text
            assert '"who": "ann"' in board.post(path, {**asked, "family": "seen"}).text
            assert "Choose a family" in board.post(path, {"column.0": "ann"}).text


def test_looked_up_keys_and_values_are_not_stored(scene: Scene) -> None:
    answer = scene.look_up(scene.orders, column0=SECRET)
    assert answer.headers["Cache-Control"] == "no-store"
    forms = [attributes for tag, attributes in answer.page.elements if tag == "form"]
    assert [form["method"] for form in forms] == ["post"]
    links = [attributes.get("href") for _, attributes in answer.page.elements]
    assert not any(SECRET in (link or "") for link in links)
    assert SECRET not in scene.board.log.read_text()
    # A key in a query string is not looked at.
    assert '"n"' not in scene.board.get(f"/query/{scene.orders}/key?column.0={SECRET}").body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/style.css", 200),
        ("/icon.svg", 200),
        ("/login", 200),
        ("/nothing", 404),
        ("/query/nothing", 404),
        (f"/query/{'0' * 32}", 404),
        ("/query/..%2f..%2fetc/key", 404),
    ],
)
def test_every_response_has_security_headers(scene: Scene, path: str, status: int) -> None:
    answer = scene.board.get(path)
    assert answer.status == status
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self'; form-action")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] in ("no-store", "max-age=3600")
    assert "Server" not in answer.headers
    if answer.headers.get_content_type() == "text/html":
        assert not answer.page.open
        assert not re.search(r"(src|href)=\"(https?:)?//", answer.body)


def test_foreign_host_names_are_refused(scene: Scene) -> None:
    board = scene.board
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        assert board.get("/", Host=f"{name}:{board.port}").status == 200
    for name in ("attacker.example", "localhost.attacker.example", "10.0.0.1", "", "[", "a@b@c"):
        refused = board.get("/", Host=name)
        assert refused.status in (400, 421)
        assert "orders" not in refused.body


def test_foreign_forms_are_refused(scene: Scene) -> None:
    board, path = scene.board, f"/query/{scene.orders}/key"
    fields = {"column.0": SECRET}
    assert board.post(path, fields, Origin="https://attacker.example").status == 403
    assert board.post(path, fields, Origin="null").status == 403
    assert board.post(path, fields, Origin=f"http://127.0.0.1:{board.port + 1}").status == 403
    assert board.post(path, fields, Sec_Fetch_Site="cross-site").status == 403
    assert board.post(path, fields, Sec_Fetch_Site="same-site").status == 403
    assert board.post(path, fields, Sec_Fetch_Site="same-origin").status == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert board.send("POST", path, body=b"column.0=x", headers=form).status == 403


def test_malformed_form_is_refused(scene: Scene) -> None:
    board, path = scene.board, f"/query/{scene.orders}/key"
    own = {"Origin": board.origin}
    form = {**own, "Content-Type": "application/x-www-form-urlencoded"}
    assert board.send("PUT", path, headers=own).status == 405
    assert board.send("DELETE", "/", headers=own).status == 405
    assert board.post("/", {}).status == 405
    assert board.send("POST", path, body=b"{}", headers=own).status == 415
    assert board.send("POST", path, body=b"x" * 70_000, headers=form).status == 413
    assert board.send("POST", path, body=b"column.0=%ff", headers=form).status == 400
    assert board.send("POST", path, body=b"&".join([b"a=b"] * 600), headers=form).status == 400
    assert board.send("HEAD", "/", headers={}).body == ""


def test_page_of_a_purged_query_becomes_404(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_query(redis_server.url, "short lived")
    with connect(redis_server.url) as reader:
        (query,) = reader.queries()
    path = f"/query/{query.gen}"
    with Dashboard(redis_server.url, log=tmp_path / "log") as board:
        assert board.get(path).status == 200
        purge = ["purge", "--url", redis_server.url, "--gen", query.gen, "--yes", "--force"]
        assert main(purge) == 0, capsys.readouterr()
        wait_until(lambda: board.get(path).status == 404, "the purge to be seen")
        gone = board.get(path)
        assert "The query is gone" in gone.text
        assert "“short lived” is no longer in Redis" in gone.text
        assert board.post(f"{path}/key", {"column.0": "ann"}).status == 404


def test_dashboard_recovers_after_a_server_restart(start_redis: StartRedis, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    server = start_redis(folder=tmp_path / "data")
    write_query(server.url, "orders")
    with Dashboard(server.url, "--deadline", "1s", log=tmp_path / "log") as board:
        with connect(server.url) as reader:
            (query,) = reader.queries()
        page, key = f"/query/{query.gen}", f"/query/{query.gen}/key"
        assert board.get("/").status == 200
        server.kill()
        wait_until(lambda: "cannot be reached" in board.get("/").text, "the loss to be seen")
        lost = board.get(page)
        assert lost.status == 200
        assert re.search(r"Since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC. The data below", lost.text)
        assert board.post(key, {"column.0": "ann"}).status == 503
        server.start()
        wait_until(lambda: "cannot be reached" not in board.get("/").text, "the server")
        assert board.get(page).status == 200
        assert board.post(key, {"column.0": "ann"}).status == 200


def test_unreachable_server_is_shown_with_503(tmp_path: Path, redis_server: RedisServer) -> None:
    url = redis_server.url
    redis_server.stop()
    with Dashboard(url, "--deadline", "1s", log=tmp_path / "log") as board:
        wait_until(lambda: "cannot be reached" in board.get("/").text, "the first look to fail")
        assert board.get("/").status == 503
        assert board.get(f"/query/{'0' * 32}").status == 503


def test_missing_right_is_shown(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_query(redis_server.url, "orders", rows=lambda _, version: {"ann": {"n": version}})
    monkeypatch.setenv("REDIS_STATE_PASSWORD", "secret")
    rules = ["reset", "on", ">secret", "~*", "resetchannels", "-@all", "+hgetall", "+select"]
    redis_server.client().execute_command("ACL", "SETUSER", "viewer", *rules)  # type: ignore[no-untyped-call]  # its stub
    board = Dashboard(
        redis_server.url, "--username", "viewer", "--deadline", "1s", log=tmp_path / "log"
    )
    with board:
        wait_until(lambda: "a right is missing" in board.get("/").text, "the first look to fail")
        assert "REDIS_PERMISSION" in board.get("/").text
        enough = [*acl.rules(Role.READER, version="6.2"), ">secret"]
        redis_server.client().execute_command("ACL", "SETUSER", "viewer", *enough)  # type: ignore[no-untyped-call]  # its stub
        wait_until(lambda: "orders" in board.get("/").text, "the rights")
        with connect(redis_server.url) as reader:
            gen = reader.query("orders").info.gen
        assert '{ "n": 2 }' in board.post(f"/query/{gen}/key", {"column.0": "ann"}).text


def test_token_grants_access(redis_server: RedisServer, tmp_path: Path) -> None:
    write_query(redis_server.url, "orders")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789\n")
    with Dashboard(redis_server.url, "--token-file", str(token), log=tmp_path / "log") as board:
        for path in ("/", "/query/x", "/query/x/key", "/nothing"):
            refused = board.get(path)
            assert (refused.status, refused.headers["Location"], refused.body) == (
                303,
                "/login",
                "",
            )
        assert board.post("/query/x/key", {"column.0": "a"}).status == 303
        assert board.get("/style.css").status == 200
        wrong = board.post("/login", {"token": "0123456789abcdef0123456788"})
        assert wrong.status == 403
        assert "not the token" in wrong.text
        assert "Set-Cookie" not in wrong.headers
        right = board.post("/login", {"token": "0123456789abcdef0123456789"})
        assert (right.status, right.headers["Location"]) == (303, "/")
        cookie = right.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert "0123456789" not in cookie
        board.cookie = cookie.split(";")[0]
        assert "orders" in board.get("/").text
        out = board.post("/logout", {})
        assert (out.status, out.headers["Location"]) == (303, "/login")
        assert board.get("/").status == 303
        board.cookie = f"redis_state_session_{board.port}="
        assert board.get("/").status == 303
    assert "0123456789" not in (tmp_path / "log").read_text()


def test_dashboard_serves_https(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis(tls=True)
    made = server.certificates
    assert made is not None
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789")
    arguments = ["--tls-ca-file", str(made.authority), "--token-file", str(token)]
    arguments += ["--serve-cert-file", str(made.certificate), "--serve-key-file", str(made.key)]
    log = tmp_path / "log"
    with Dashboard(server.url, *arguments, log=log, authority=made.authority) as board:
        assert board.address.startswith("https://127.0.0.1:")
        right = board.post("/login", {"token": token.read_text()})
        assert "Secure" in right.headers["Set-Cookie"].split("; ")
        board.cookie = right.headers["Set-Cookie"].split(";")[0]
        assert "No query keeps its state" in board.get("/").text
        assert board.stop() == 0


def test_empty_dashboard_runs_until_an_interrupt(
    start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(password="canary-password")
    monkeypatch.setenv("REDIS_STATE_PASSWORD", "canary-password")
    with Dashboard(server.url, log=tmp_path / "log") as board:
        answer = board.get("/")
        assert answer.status == 200
        assert "No query keeps its state in this Redis" in answer.text
        assert "canary" not in answer.body
        assert board.end(signal.SIGINT) == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "0.0.0.0"), "can be reached from other machines, and there is no token"),
        (("--token-file", "{folder}/none"), "No such file or directory"),
        (("--token-file", "{folder}/short"), "fewer than 20 characters"),
        (("--serve-cert-file", "{folder}/short"), "only one of a certificate and its key is given"),
        (
            ("--serve-cert-file", "{folder}/short", "--serve-key-file", "{folder}/short"),
            "they do not belong together, or are not PEM files",
        ),
        (("--port", "70000"), "70000 is not a port number"),
        (("--port", "{port}"), "Address already in use"),
    ],
)
def test_failed_start_names_the_reason(
    arguments: tuple[str, ...],
    message: str,
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "short").write_text("short")
    places = {"folder": tmp_path, "port": redis_server.port}
    words = [word.format(**places) for word in arguments]
    assert main(["dashboard", "--url", redis_server.url, *words]) == 1
    assert message in capsys.readouterr().err


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(sys.modules):
        if name.startswith("redis_state.dashboard"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["dashboard", "--url", "redis://localhost:1/0"]) == 1
    assert "`pip install 'redis-state[dashboard]'`" in capsys.readouterr().err


def test_other_commands_do_not_import_dashboard_packages() -> None:
    code = (
        "import sys, redis_state.cli.main as m; m.build_parser(); "
        "print({'uvicorn', 'starlette', 'jinja2', 'pygal'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
