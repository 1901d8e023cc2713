"""docs/history-in-files.md: its steps run as they stand, and print what stands there.

`python -m tests.contract.test_history_in_files_page` writes what they print into the page.
"""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.contract.test_commands_page import environment, printed
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "history-in-files.md"
FOLDER = "/data/segments"
URL = "redis://localhost:6379/0"
STEP = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BYTES = re.compile(r'("\w*_bytes": )[1-9]\d*')


def rewritten(page: str, server: RedisServer, folder: Path) -> str:
    """The page with what its commands print now."""

    def step(found: re.Match[str]) -> str:
        kind, text = found.groups()
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(text.replace(URL, server.url).replace(FOLDER, str(folder / "segments")), {})
            assert out.getvalue() == "12 2\n"
            return found[0]
        commands = [line for line in text.splitlines() if line.startswith("$ ")]
        shown = "".join(f"{line}\n{printed(line[2:])}" for line in commands)
        return f"```console\n{shown}```"

    return STEP.sub(step, page)


def now(server: RedisServer, folder: Path) -> str:
    with environment(server, folder):
        return rewritten(PAGE.read_text("utf-8"), server, folder)


def steady(text: str) -> str:
    """Removes sizes, which depend on the compressor's release."""
    return BYTES.sub(r"\g<1>1", text)


def test_page_prints_what_stands_there(redis_server: RedisServer, tmp_path: Path) -> None:
    assert steady(now(redis_server, tmp_path)) == steady(PAGE.read_text("utf-8"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, RedisServer() as server:
        PAGE.write_text(now(server, Path(name)), "utf-8")
