#!/usr/bin/env bash
# Checks that the machine has what the build needs; says what to install when it does not.
# Usage: tools/check_tools.sh PYTHON
set -euo pipefail
python="$1"

fail() {
    echo "error: $1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "no '$python' found: install Python 3.10 or newer, or run 'make PYTHON=/path/to/python3'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "'$python' is $("$python" -V 2>&1): install Python 3.10 or newer, or run 'make PYTHON=/path/to/python3'"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)"

javac="${JAVA_HOME:+$JAVA_HOME/bin/}javac"
command -v "$javac" >/dev/null ||
    fail "no JDK found ('$javac'): install JDK 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME"
version="$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p' | tail -n 1)"
[ "${version:-0}" -ge 17 ] ||
    fail "'$javac' is version ${version:-unknown}: install JDK 17 or newer, or point JAVA_HOME at one"
