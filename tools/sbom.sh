#!/usr/bin/env bash
# Writes bills of materials (CycloneDX, JSON) of the wheel and of each jar into dist/.
# With --audit, looks up what the wheel needs in the advisories that PyPI publishes instead.
# Usage: tools/sbom.sh [--audit] VERSION MVN MINOR ...
set -euo pipefail
cd "$(dirname "$0")/.."

audit=0
if [ "$1" = --audit ]; then
    audit=1
    shift
fi
version="$1" mvn="$2"
shift 2
wheel="dist/redis_state-$version-py3-none-any.whl"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The tools have an environment of their own, so that they do not count as what the wheel needs.
.venv/bin/python -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check \
    'cyclonedx-bom>=7,<8' 'pip-audit>=2.10,<3'
.venv/bin/python -m venv "$work/wheel"
"$work/wheel/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
"$work/wheel/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check setuptools

if [ "$audit" = 1 ]; then
    # What cannot be looked up is a failure too.
    "$work/tools/bin/pip-audit" --strict --path "$work"/wheel/lib/python3*/site-packages
    exit
fi

"$work/wheel/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check pip
"$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible \
    --mc-type library --output-file "dist/redis_state-$version.cdx.json" "$work/wheel/bin/python"
for minor in "$@"; do
    "$mvn" -B -ntp -q -Dstyle.color=never -f jvm-adapter/pom.xml -Drevision="$version" \
        -pl "spark-$minor" -am org.cyclonedx:cyclonedx-maven-plugin:2.9.1:makeBom \
        -DincludeProvidedScope=false -DincludeSystemScope=false -DincludeTestScope=false \
        -DoutputFormat=json -DoutputName=bom
    cp "jvm-adapter/spark-$minor/target/bom.json" \
        "dist/redis-state-spark-${minor}_2.13-$version.cdx.json"
done
ls dist/*.cdx.json
