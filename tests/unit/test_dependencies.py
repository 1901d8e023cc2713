"""docs/dependencies.md names every dependency, with the version that is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "jvm-adapter"
POM = "{http://maven.apache.org/POM/4.0.0}"
REQUIREMENT = re.compile(r"""["']([A-Za-z][\w.-]*)((?:\[\w+\])?>=[^"';]+)["';]""")


def table(heading: str) -> dict[str, str]:
    """Names and versions in the list of a section."""
    page = (ROOT / "docs/dependencies.md").read_text("utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^- `([^`]+)` `([^`]+)`: ", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a package is there twice"
    return dict(rows)


def artifacts(pom: Path, properties: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Dependencies and plugins that a file gives a version of its own."""
    for element in ElementTree.parse(pom).getroot().iter():
        if element.tag in {f"{POM}dependency", f"{POM}plugin"}:
            name, version = element.findtext(f"{POM}artifactId"), element.findtext(f"{POM}version")
            if name and version:
                yield name, re.sub(r"\$\{(.+)\}", lambda found: properties[found[1]], version)


def test_page_lists_every_python_package() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8").split("\n[tool.")[0]
    tools = (ROOT / "tools/sbom.sh").read_text("utf-8")
    assert table("Python") == dict(REQUIREMENT.findall(project) + REQUIREMENT.findall(tools))


def test_page_lists_every_jvm_artifact() -> None:
    parent = ElementTree.parse(ADAPTER / "pom.xml").getroot()
    given = parent.find(f"{POM}properties")
    assert given is not None
    properties = {one.tag.removeprefix(POM): one.text or "" for one in given}
    # Modules of a Spark minor name its jars, and nothing else, with a version.
    folders = (".", "core", "file-systems", "scalafmt")
    poms = [ADAPTER / folder / "pom.xml" for folder in folders]
    found = dict(one for pom in poms for one in artifacts(pom, properties))
    (bom,) = re.findall(
        r":(cyclonedx-maven-plugin):([\d.]+):", (ROOT / "tools/sbom.sh").read_text()
    )
    assert table("JVM") == found | {bom[0]: bom[1]}


def test_modules_of_a_spark_minor_name_only_its_jars() -> None:
    for pom in sorted(ADAPTER.glob("spark*/pom.xml")):
        for dependency in ElementTree.parse(pom).getroot().iter(f"{POM}dependency"):
            group, scope = dependency.findtext(f"{POM}groupId"), dependency.findtext(f"{POM}scope")
            ours = group == "org.redisstate" or dependency.findtext(f"{POM}version") is None
            assert ours or group == "org.apache.spark" or scope == "system", pom
