#!/usr/bin/env bash
# Runs scalafmt over the Scala sources: rewrites them, or with --test only says which differ.
# `make` writes its class path first. Usage: tools/scalafmt.sh [--test]
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
    "") mode=(--quiet) ;;
    --test) mode=(--list) ;; # names the files that differ, and fails
    *) echo "usage: $0 [--test]" >&2 && exit 2 ;;
esac
class_path="$(<jvm-adapter/target/scalafmt-classpath.txt)"
find jvm-adapter -name target -prune -o -name '*.scala' -print0 |
    xargs -0 "${JAVA_HOME:+$JAVA_HOME/bin/}java" -cp "$class_path" org.scalafmt.cli.Cli \
        --config .scalafmt.conf --non-interactive "${mode[@]}"
