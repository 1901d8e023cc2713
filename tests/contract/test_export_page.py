"""docs/export.md: its steps run as they stand, and print what stands there.

`python -m tests.contract.test_export_page` writes what they print into the page.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from redis_state import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import Planted, plant_checkpoint
from tests.contract.test_commands_page import CARRIERS, environment, printed
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"
URL = "redis://localhost:6379/0"
STEP = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BATCHES = 3


def plant(server: RedisServer, folder: Path) -> None:
    """A query with a checkpoint, whose next batch was committed and another one planned."""
    flights = Planted(server.client(), partitions=2)
    flights.register()
    for version in range(1, BATCHES + 1):
        rows = [({"carrier": one}, {"count": 7 * version, "total": 1.5}) for one in CARRIERS]
        flights.commit(version, rows)
    plant_checkpoint(folder, batches=BATCHES + 1)


def fill_cart(server: RedisServer) -> None:
    """A store of Python."""
    id_ = StateStoreProviderId(StateStoreId("cart", 0, 0))
    provider = StateStoreProvider(id_, config=server.url)
    store = provider.get_store(0)
    for number in range(3):
        store.put(("user", number), {"items": number})
    provider.get_store(store.commit()).abort()
    provider.close()


def rewritten(page: str, server: RedisServer) -> str:
    """The page with what its steps print now."""

    def step(found: re.Match[str]) -> str:
        kind, text = found.groups()
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(text.replace(URL, server.url), {})
            assert out.getvalue()
            return found[0]
        shown = ""
        for line in text.splitlines():
            if not line.startswith("$ "):
                continue
            if line.startswith("$ redis-state import exports/flights"):
                server.client().flushdb()
            if line.startswith("$ redis-state export cart"):
                fill_cart(server)
            shown += f"{line}\n{printed(line[2:])}"
        return f"```console\n{shown}```"

    return STEP.sub(step, page)


def steady(text: str) -> list[str]:
    """Removes compressed sizes, and the order in which a folder is listed."""
    return sorted(re.sub(r"about [\d,]+ bytes go", "about N bytes go", text).splitlines())


def now(server: RedisServer, folder: Path) -> str:
    plant(server, folder)
    with environment(server, folder):
        return rewritten(PAGE.read_text("utf-8"), server)


def test_the_page_shows_what_its_steps_print(redis_server: RedisServer, tmp_path: Path) -> None:
    assert steady(now(redis_server, tmp_path)) == steady(PAGE.read_text("utf-8")), (
        "run `python -m tests.contract.test_export_page`"
    )


def write_page() -> None:
    from tempfile import TemporaryDirectory

    with RedisServer() as server, TemporaryDirectory() as folder:
        text = now(server, Path(folder))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    write_page()
