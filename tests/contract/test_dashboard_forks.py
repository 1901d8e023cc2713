"""The dashboard's pages of a fork, its parent, and kept versions."""

from __future__ import annotations

from pathlib import Path

from redis_state import connect
from redis_state.forks import fork
from redis_state.forks.keep import keep
from tests.support.dashboard import Answer, Dashboard, write_query
from tests.support.redis_server import RedisServer


def test_pages_of_parent_and_fork_name_each_other(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    write_query(redis_server.url, "orders")
    fork(redis_server.url, "orders", to="<what-if>")
    keep(redis_server.url, "orders", name="before-deploy")
    with connect(redis_server.url) as reader:
        gens = {query.name: query.gen for query in reader.queries()}
    with Dashboard(redis_server.url, log=tmp_path / "log") as board:
        forked, parent = (board.get(f"/query/{gens[name]}") for name in ("<what-if>", "orders"))
    assert "Fork of orders , since version 2" in forked.text
    assert linked(forked, gens["orders"])
    assert "Fork <what-if> , version 2" in parent.text
    assert linked(parent, gens["<what-if>"])
    assert "Kept version before-deploy, version 2" in parent.text
    assert "Fork of" not in parent.text


def linked(answer: Answer, gen: str) -> bool:
    return ("a", f"/query/{gen}") in [(tag, of.get("href")) for tag, of in answer.page.elements]
