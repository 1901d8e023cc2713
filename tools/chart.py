"""Completes the Helm chart, and keeps what it renders for tests that have no Helm.

    python tools/chart.py

Copies alert rules and Grafana's dashboard from docker/metrics into docker/chart/files, and renders
the chart with each file of values in tests/unit/chart. Helm is the one on PATH, else built from
its Go module into the cache folder that tools/servers.py uses, which takes minutes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.commands import output_of
from tools.servers import cache_folder, made_once

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docker" / "chart"
COPIES = {
    "alerts.yml": ROOT / "docker" / "metrics" / "alerts.yml",
    "dashboard.json": ROOT / "docker" / "metrics" / "grafana" / "dashboard.json",
}
RENDERED = ROOT / "tests" / "unit" / "chart"
HELM_MODULE = "helm.sh/helm/v3/cmd/helm"
HELM_VERSION = "v3.19.0"
# Helm built from its module takes an old default.
KUBERNETES = "1.31.0"
_BUILD_S_MAX = 1800
_RUN_S_MAX = 60


class HelmError(Exception):
    """Helm is not available, or failed."""


def ensure_helm(cache: Path) -> Path:
    """Returns the program, which is built if missing.

    Raises:
        HelmError: There is no Go, or the build failed.
    """
    if found := shutil.which("helm"):
        return Path(found)
    return made_once(cache / f"helm-{HELM_VERSION}", _build_helm) / "helm"


def _build_helm(folder: Path, _: Path) -> None:
    if shutil.which("go") is None:
        raise HelmError("neither helm nor go is on PATH: install Helm 3")
    output_of(
        ["go", "install", f"{HELM_MODULE}@{HELM_VERSION}"],
        HelmError,
        variables={"GOBIN": str(folder), "GOFLAGS": "-ldflags=-s"},
        limit_s=_BUILD_S_MAX,
    )


def values_files() -> list[Path]:
    """Returns the files of values with which the chart is rendered."""
    return sorted(RENDERED.glob("*.values.yaml"))


def rendered_file(values: Path) -> Path:
    """Returns where the output for a file of values is kept."""
    return values.with_name(values.name.replace(".values.", ".rendered."))


def digest() -> str:
    """Returns the hash of all that the chart renders from."""
    found = hashlib.sha256()
    for path in sorted(one for one in CHART.rglob("*") if one.is_file()):
        found.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes() + b"\0")
    for path in values_files():
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def head() -> str:
    """Returns the first line of a kept output, which names the chart it was rendered from."""
    return f"# Written by tools/chart.py from a chart with the SHA-256 {digest()}\n"


def rendered(helm: Path, values: Path) -> str:
    """Returns what Helm renders, without blanks at the end of lines.

    Raises:
        HelmError: Helm refuses the chart or the values.
    """
    words = ["template", "state", str(CHART), "--namespace", "redis-state"]
    text = _output([str(helm), *words, "--kube-version", KUBERNETES, "--values", str(values)])
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def linted(helm: Path, values: Path) -> str:
    """Returns the report of Helm's linter.

    Raises:
        HelmError: It found an error.
    """
    return _output([str(helm), "lint", str(CHART), "--strict", "--values", str(values)])


def _output(command: list[str]) -> str:
    return output_of(command, HelmError, limit_s=_RUN_S_MAX)


def main() -> int:
    """Copies and renders."""
    for name, source in COPIES.items():
        shutil.copyfile(source, CHART / "files" / name)
    try:
        helm = ensure_helm(cache_folder())
        for values in values_files():
            rendered_file(values).write_text(head() + rendered(helm, values), "utf-8")
            print(rendered_file(values).relative_to(ROOT))
    except HelmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
