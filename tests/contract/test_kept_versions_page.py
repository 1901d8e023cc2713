"""docs/kept-versions.md: its steps run as they stand, and print what stands there.

`python -m tests.contract.test_kept_versions_page` writes what they print into the page.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from tests.contract.planting import Planted
from tests.contract.test_commands_page import environment, printed
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kept-versions.md"
URL = "redis://localhost:6379/0"
STEP = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAID = [
    "{'count': 21, 'total': 1.5}\n['before-deploy', 'first-batch']\n1\n",
    "2 0 1 0\n['count', 'total'] 14\n",
]
"""Lines that the Python examples of the page print."""


def plant(server: RedisServer) -> None:
    """A query of three batches; the last one brings a new key."""
    flights = Planted(server.client(), partitions=2)
    flights.register()
    for version in range(1, 4):
        carriers = ("AA", "UA") if version < 3 else ("AA", "UA", "DL")
        rows = [({"carrier": one}, {"count": 7 * version, "total": 1.5}) for one in carriers]
        flights.commit(version, rows)


def rewritten(page: str, server: RedisServer) -> tuple[str, list[str]]:
    """The page with what its commands print now, and what its Python prints."""
    said: list[str] = []

    def step(found: re.Match[str]) -> str:
        kind, text = found.groups()
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(text.replace(URL, server.url), {})
            said.append(out.getvalue())
            return found[0]
        commands = [line for line in text.splitlines() if line.startswith("$ ")]
        shown = "".join(f"{line}\n{printed(line[2:])}" for line in commands)
        return f"```console\n{shown}```"

    return STEP.sub(step, page), said


def steady(text: str) -> list[str]:
    """Removes times, and the order in which keys are read."""
    return sorted(re.sub(r'("\w*_ms": )\d+', r"\g<1>0", text).splitlines())


def now(server: RedisServer, folder: Path) -> tuple[str, list[str]]:
    plant(server)
    with environment(server, folder):
        return rewritten(PAGE.read_text("utf-8"), server)


def test_the_page_shows_what_its_steps_print(redis_server: RedisServer, tmp_path: Path) -> None:
    page, said = now(redis_server, tmp_path)
    assert steady(page) == steady(PAGE.read_text("utf-8")), (
        "run `python -m tests.contract.test_kept_versions_page`"
    )
    assert [sorted(one.splitlines()) for one in said] == [sorted(one.splitlines()) for one in SAID]


def write_page() -> None:
    from tempfile import TemporaryDirectory

    with RedisServer() as server, TemporaryDirectory() as folder:
        text, _ = now(server, Path(folder))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    write_page()
