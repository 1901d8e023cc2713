"""The messages on docs/errors.md after mistakes in a query or its application."""

from __future__ import annotations

import re
from pathlib import Path

from redis_state.errors import Kind

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
_MISTAKE = re.compile(r"^\*\*(.+?)\*\*\n> (.+)$", re.MULTILINE)
_SAID = re.compile(r"terminated with exception: (.*?) SQLSTATE: XXKST\n", re.DOTALL)
_SHOWN_AS = (
    (r"127\.0\.0\.1:\d+", "redis.example:6379"),
    (r"/\S+/checkpoints/(counts|copy)", "/data/orders"),
    (r"after \d+ tries in \d+ ms", "after 13 tries in 10000 ms"),
    (r"\b[0-9a-f]{32}\b", "3f0c…"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "5b1e…"),
    (r"partition \d", "partition 1"),
    (r"NOPERM .*? 'unlink' command", "NOPERM … 'unlink' command"),
    (r"OOM command not allowed when used memory > 'maxmemory'\.?", "OOM …"),
    (r"/\S*/no-such-file", "/etc/redis-password"),
)


def documented(section: str) -> dict[str, str]:
    """Text by title, of the section between two comments of that name."""
    _, between, _ = re.split(f"<!-- /?{section} -->", _PAGE.read_text("utf-8"))
    return dict(_MISTAKE.findall(between))


def last_of(query_error: str) -> str:
    """Last line of a failed query's message, without the text that Spark adds."""
    found = _SAID.search(query_error)
    assert found, query_error
    said = re.sub(r"\s*SQLSTATE: 39000\s*$", "", found[1]).strip()
    return said.splitlines()[-1]


def shown(said: str) -> str:
    """A text of ours without what differs from run to run."""
    assert re.search(rf"\[REDIS_({'|'.join(Kind)})\] ", said)
    assert "clear the existing checkpoint" not in said
    for pattern, text in _SHOWN_AS:
        said = re.sub(pattern, text, said)
    return said
