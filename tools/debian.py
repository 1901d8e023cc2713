"""Unpacks packages of any Debian release into a folder, without installing them.

A private apt folder limits apt to one release, so this machine's release does not matter, and no
root is needed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tools.commands import output_of

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES_MAX = 100


class FetchError(Exception):
    """A program or package is not available on this machine."""


def unpack(
    packages: set[str],
    release: str,
    root: Path,
    *,
    scratch: Path,
    prefixes: tuple[str, ...] = (),
) -> None:
    """Unpacks packages, with the libraries that they need, into a root folder.

    Args:
        scratch: Folder for apt's files; the caller removes it.
        prefixes: Beginnings of the names of further packages that may be needed.

    Raises:
        FetchError: A package is not available; the message has the reason.
    """
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FetchError(
                f"{', '.join(sorted(packages))} of Debian {release} would be fetched with apt, and "
                f"there is no {tool} here."
            )
    settings = _private_apt(_debian_archive(), release, scratch)
    run(["apt-get", *settings, "-qq", "update"])
    wanted = _with_libraries(packages, settings, ("lib", "zlib", *prefixes))
    debs = scratch / "debs"
    debs.mkdir()
    run(["apt-get", *settings, "-qq", "download", *sorted(wanted)], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        run(["dpkg-deb", "--extract", str(deb), str(root)])


def _debian_archive() -> str:
    """Returns the address of the archive that this machine's apt uses for Debian itself."""
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(LABEL)|$(REPO_URI)",
        "Created-By: Packages",
    ]
    for line in run(command).splitlines():
        label, _, address = line.partition("|")
        if label == "Debian" and address:
            return address
    raise FetchError(
        "apt knows no archive of Debian on this machine. Run `apt-get update` on a Debian. For "
        "tests with other servers, install one by hand and name it in REDIS_STATE_SERVER."
    )


def _private_apt(archive: str, release: str, folder: Path) -> list[str]:
    """Returns options that limit apt to its own folder and one release, with nothing installed."""
    for name in ("lists/partial", "cache/archives/partial", "etc"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    (folder / "etc" / "sources.list").write_text(f"deb {signed}{archive} {release} main\n")
    settings = {
        "Dir::Etc::SourceList": folder / "etc" / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "APT::Get::List-Cleanup": "0",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _with_libraries(packages: set[str], settings: list[str], prefixes: tuple[str, ...]) -> set[str]:
    """Returns the packages, and those that they need whose names begin in one of these ways."""
    wanted = set(packages)
    new: Iterable[str] = wanted
    while new:
        listed = run(["apt-cache", *settings, "depends", "--no-recommends", *sorted(new)])
        named = set(re.findall(r"^ [ |]*(?:Pre)?Depends: ([a-z0-9][a-z0-9+.-]*)", listed, re.M))
        needed = {name for name in named if name.startswith(prefixes)}
        new = needed - wanted
        wanted |= needed
        if len(wanted) > _PACKAGES_MAX:
            raise FetchError(
                f"{', '.join(sorted(packages))} needs more than {_PACKAGES_MAX} packages"
            )
    return wanted


def run(command: list[str], *, cwd: Path | None = None) -> str:
    """Returns the output of a command that has to succeed within ten minutes."""
    return output_of(command, FetchError, cwd=cwd)
