"""docs/forks.md: its commands run, and print what stands there.

`python -m tests.contract.test_forks_page` writes what they print into the page.
"""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import redis_state
from redis_state.cli.main import main
from tests.contract.fork_scene import Scene
from tests.contract.test_commands_page import Terminal, environment
from tests.contract.test_export_page import fill_cart
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "forks.md"
URL = "redis://localhost:6379/0"
STEP = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def rewritten(page: str, server: RedisServer) -> str:
    """The page with what its steps print now."""

    def step(found: re.Match[str]) -> str:
        kind, text = found.groups()
        if kind == "python":
            exec(text.replace(URL, server.url), {"redis_state": redis_state})
            return found[0]
        shown = ""
        for line in text.splitlines():
            if line.startswith("$ "):
                with redirect_stdout(Terminal()) as out:
                    assert main(shlex.split(line[2:])[1:]) == 0
                shown += f"{line}\n{out.getvalue()}"
        return f"```console\n{shown}```"

    return STEP.sub(step, page)


def steady(text: str) -> str:
    """Removes what differs from run to run: gens, times and folders."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "GEN", text)
    return re.sub(r"[ \t]+$", "", re.sub(r"in [\d.]+ s\b", "in N s", text), flags=re.MULTILINE)


def now(server: RedisServer, folder: Path) -> str:
    Scene(server, folder / "checkpoints/flights").run(10)
    fill_cart(server)
    with environment(server, folder):
        text = rewritten(PAGE.read_text("utf-8"), server)
    return text.replace(f"{folder}/", "")


def test_the_page_shows_what_its_steps_print(redis_server: RedisServer, tmp_path: Path) -> None:
    assert steady(now(redis_server, tmp_path)) == steady(PAGE.read_text("utf-8")), (
        "run `python -m tests.contract.test_forks_page`"
    )


def write_page() -> None:
    from tempfile import TemporaryDirectory

    with RedisServer() as server, TemporaryDirectory() as folder:
        text = now(server, Path(folder).resolve())
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    write_page()
