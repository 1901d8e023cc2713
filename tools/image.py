"""Builds the image of the redis-state command from Debian packages and the wheel.

    python tools/image.py TAG [--wheel FILE]

No registry of images is needed: the root file system is Python with its libraries, as packages of
one Debian release, and the wheel with the packages of PyPI that its roles need. Without `--wheel`
the wheel is built from this source, without jars, which no role of the image needs. The unpacked
root is kept in the cache folder that tools/servers.py uses. The Docker engine is the one that
DOCKER_HOST names.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import debian
from tools.commands import output_of
from tools.servers import cache_folder, made_once

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docker" / "redis-state"
RELEASE = "trixie"
PYTHON = "3.13"
EXTRAS = "exporter,dashboard,checkpoints"
USER = 10001
_PACKAGES = {f"python{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", "ca-certificates", "tzdata"}
_SITE = "usr/lib/python3/dist-packages"
# Character sets that Python does not use, documentation, and parts of the standard library for
# people at a terminal.
_UNUSED = (
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/aarch64-linux-gnu/gconv",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    f"usr/lib/python{PYTHON}/ensurepip",
    f"usr/lib/python{PYTHON}/pydoc_data",
    f"usr/lib/python{PYTHON}/test",
)
_WHEEL_SOURCES = ("redis_state", "pyspark_redis_state")
_WHEEL_FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


def version() -> str:
    """Returns the version of the source."""
    text = (ROOT / "redis_state" / "_version.py").read_text("utf-8")
    return text.split('"')[-2]


def build(tag: str, wheel: Path | None = None) -> None:
    """Builds the image.

    Raises:
        debian.FetchError: A package is not available, or a command failed.
    """
    with tempfile.TemporaryDirectory(prefix="rs-image-") as name:
        context = Path(name, "context")
        context.mkdir()
        root = Path(name, "root")
        system = made_once(cache_folder() / f"python-{PYTHON}-{RELEASE}", _system)
        shutil.copytree(system, root, symlinks=True)
        _install(wheel or built_wheel(Path(name, "wheel")), root)
        with tarfile.open(context / "rootfs.tar", "w") as archive:
            archive.add(root, arcname=".", filter=_owned_by_root)
        shutil.copy(FOLDER / "debian.Dockerfile", context / "Dockerfile")
        output_of(
            ["docker", "build", "--quiet", "--tag", tag, context],
            debian.FetchError,
            variables={"DOCKER_BUILDKIT": "0"},
        )


def _system(root: Path, scratch: Path) -> None:
    """Fills a root folder with Python."""
    for folder in ("bin", "lib", "lib64", "sbin"):
        # The links of a merged /usr, which the package base-files would make.
        (root / "usr" / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).symlink_to(f"usr/{folder}")
    debian.unpack(_PACKAGES, RELEASE, root, scratch=scratch / "apt")
    for unused in _UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)
    _finish(root)


def _finish(root: Path) -> None:
    """Adds what the scripts of the packages would make: users, certificates, links."""
    for folder, mode in (("tmp", 0o1777), ("etc/ssl/certs", 0o755), (_SITE, 0o755)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)
    (root / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/:/usr/sbin/nologin\n"
        f"redis-state:x:{USER}:{USER}:redis-state:/tmp:/usr/sbin/nologin\n"
    )
    (root / "etc/group").write_text(f"root:x:0:\nredis-state:x:{USER}:\n")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.write_text("".join(one.read_text("ascii") for one in certificates))
    default = root / "usr/lib/ssl"
    default.mkdir(parents=True, exist_ok=True)
    (default / "cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def built_wheel(folder: Path) -> Path:
    """Returns a wheel without jars, built from a copy of the source, which stays as it is."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _WHEEL_FILES:
        shutil.copy(ROOT / name, source)
    for name in _WHEEL_SOURCES:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("jars", "__pycache__")
        )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    debian.run([*command, "--wheel-dir", str(folder), str(source)])
    return next(folder.glob("redis_state-*.whl"))


def _install(wheel: Path, root: Path) -> None:
    """Installs the wheel and what its roles need for the Python of the image."""
    site = root / _SITE
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    command += ["--no-compile", "--target", str(site), f"{wheel}[{EXTRAS}]"]
    debian.run(command)
    shutil.rmtree(site / "redis_state" / "jars", ignore_errors=True)
    shutil.rmtree(site / "bin", ignore_errors=True)
    place = root / "usr/local/lib/redis-state"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("acl_users.py", "health.py"):
        shutil.copy(FOLDER / name, place)
    _compile(root, ("usr/lib/python3", f"usr/lib/python{PYTHON}", "usr/local/lib/redis-state"))


def _compile(root: Path, folders: tuple[str, ...]) -> None:
    """Writes byte code with the Python of the image, since its file system is read-only later."""
    loader = next((root / "usr").rglob("ld-linux-*.so.*"))
    libraries = {str(one.parent) for one in (root / "usr/lib").rglob("lib*.so.*")}
    command = [str(loader), "--library-path", ":".join(sorted(libraries))]
    command += [str(root / f"usr/bin/python{PYTHON}"), "-S", "-m", "compileall", "-q"]
    # By their hashes: a copy into an image may change the times of the sources.
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    command += [str(root / one) for one in folders]
    output_of(command, debian.FetchError, variables={"PYTHONHOME": str(root / "usr")})


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tag", metavar="TAG")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of `make wheel`")
    asked = parser.parse_args(words)
    try:
        build(asked.tag, asked.wheel)
    except debian.FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(asked.tag)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
