"""Health check of a container: exits with 0 while the role that it runs makes progress.

    python3 health.py

The arguments of the running command define the check: the file of `maintain --alive-file`, or the
port of `exporter` and `dashboard`. A Redis that does not answer is no failure, because a restart of
the container would not bring it back. Only the standard library is imported: the check runs often.
"""

from __future__ import annotations

import http.client
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ALIVE_S_MAX = 600
_CLIENT_S = 5
_PAGES = {"exporter": (9464, "/healthy"), "dashboard": (8765, "/login")}


def running() -> list[str] | None:
    """Returns the words behind `-m redis_state` of the process that runs a role."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            words = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "redis_state" in words[:-1]:
            return words[words.index("redis_state") + 1 : -1]
    return None


def argument(words: Sequence[str], name: str) -> str | None:
    """Returns the value of an argument, in either spelling, or ``None``."""
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def problem(words: Sequence[str]) -> str | None:
    """Returns why the role is not well, or ``None``."""
    role = words[0] if words else ""
    if role == "maintain":
        return _alive(argument(words, "--alive-file"))
    if role in _PAGES:
        port, path = _PAGES[role]
        tls = argument(words, "--serve-cert-file") is not None
        return _answers(int(argument(words, "--port") or port), path, tls=tls)
    return f"'{role}' is none of maintain, exporter, dashboard"


def _alive(path: str | None) -> str | None:
    if path is None:
        return "maintain runs without --alive-file, which shows its progress"
    try:
        age_s = time.time() - Path(path).stat().st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None if age_s <= ALIVE_S_MAX else f"no step for {age_s:.0f} s"


def _answers(port: int, path: str, *, tls: bool) -> str | None:
    connection: http.client.HTTPConnection
    if tls:
        # The certificate is for the name by which others reach the server.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=_CLIENT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_CLIENT_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"port {port} answers with status {status}"


def main() -> int:
    """Prints the problem, if there is one."""
    words = running()
    found = "no redis-state command runs" if words is None else problem(words)
    if found:
        print(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
