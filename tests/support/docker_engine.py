"""A Docker engine for the container tests: the machine's, else a private one.

The private engine keeps everything in a temporary folder and takes no part of a running one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import await_end
from tools.commands import output_of

ROOT = Path(__file__).resolve().parents[2]
_PROBE_S = 20
_PULL_S = 180
_INSTALL_S = 300
_READY_POLLS_MAX = 300
_READY_POLL_S = 0.2
_STOP_S = 30
_BRIDGE = "docker0"
_OFFICIAL_IMAGE = "redis:7.4-bookworm"
_OWN_IMAGE = "redis-state/redis-from-debian:test"


class NoDockerError(RuntimeError):
    """There is no engine and none can be made here; the message names what is missing."""


@contextmanager
def docker_engine() -> Iterator[Mapping[str, str]]:
    """Environment variables by which Docker's clients find a running engine.

    Raises:
        NoDockerError: None runs and none can be started.
    """
    if _answers({}):
        yield {}
        return
    if os.geteuid() != 0:
        raise NoDockerError("no Docker engine answers, and only root can start one")
    if shutil.which("dockerd") is None:
        _install()
    with _private_engine() as settings:
        yield settings


def redis_image(settings: Mapping[str, str]) -> str:
    """Name of a Redis image in the engine: the official one where a registry is reachable."""
    if is_pulled(settings, _OFFICIAL_IMAGE):
        return _OFFICIAL_IMAGE
    return built_image(settings, _OWN_IMAGE)


def is_pulled(settings: Mapping[str, str], image: str) -> bool:
    """Returns whether the engine has an image, after pulling it where a registry is reachable."""
    if _docker(settings, "image", "inspect", image, limit_s=_PROBE_S):
        return True
    reachable = _docker(settings, "manifest", "inspect", image, limit_s=_PROBE_S)
    return reachable and _docker(settings, "pull", "-q", image, limit_s=_PULL_S)


def built_image(settings: Mapping[str, str], tag: str, *program: Path) -> str:
    """Builds an image of one server program, by default this machine's; returns its tag."""
    script = ROOT / "docker" / "redis-from-debian" / "build.sh"
    output_of([script, tag, *program], NoDockerError, variables=settings, limit_s=_PULL_S)
    return tag


def _docker(settings: Mapping[str, str], *arguments: str, limit_s: float) -> bool:
    try:
        done = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _answers(settings: Mapping[str, str]) -> bool:
    return _docker(settings, "info", limit_s=_PROBE_S)


def _install() -> None:
    if shutil.which("apt-get") is None:
        raise NoDockerError("no Docker engine answers, no dockerd is installed, and no apt-get")
    # The package would start the engine as a system service: a policy file forbids it meanwhile.
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "docker.io"]):
            output_of(
                ["apt-get", *arguments],
                NoDockerError,
                variables={"DEBIAN_FRONTEND": "noninteractive"},
                limit_s=_INSTALL_S,
            )
    finally:
        if made:
            policy.unlink()


@contextmanager
def _private_engine() -> Iterator[Mapping[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="rs-docker-"))
    socket = folder / "docker.sock"
    settings = {"DOCKER_HOST": f"unix://{socket}"}
    had_bridge = _has_bridge()
    log = folder / "dockerd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "dockerd",
                f"--host=unix://{socket}",
                "--storage-driver=vfs",
                f"--data-root={folder / 'data'}",
                f"--exec-root={folder / 'exec'}",
                f"--pidfile={folder / 'docker.pid'}",
                # Ports are published by docker-proxy; the machine's firewall stays as it is.
                "--iptables=false",
                "--ip6tables=false",
                "--ip-masq=false",
                "--ip=127.0.0.1",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(_READY_POLLS_MAX):
            if process.poll() is not None:
                break
            if socket.exists() and _answers(settings):
                yield settings
                return
            time.sleep(_READY_POLL_S)  # another program starts: there is no clock to inject
        text = log.read_text(errors="replace")
        raise NoDockerError(f"dockerd did not start:\n{text[-4000:]}")
    finally:
        process.terminate()
        await_end(process, _STOP_S)
        _clean(folder, remove_bridge=not had_bridge)


def _has_bridge() -> bool:
    return Path("/sys/class/net", _BRIDGE).exists()


def _clean(folder: Path, *, remove_bridge: bool) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((name for name in mounts if name.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    if remove_bridge and _has_bridge() and shutil.which("ip"):
        subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)
