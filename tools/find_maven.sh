#!/usr/bin/env bash
# Prints the Maven to use: `mvn` on PATH if it is 3.8 or newer, else the wrapper in this checkout.
set -euo pipefail
wrapper="$(cd "$(dirname "$0")/.." && pwd)/mvnw"
if command -v mvn >/dev/null; then
    version="$(mvn --version 2>/dev/null | sed -n 's/.*Apache Maven \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')"
    read -r major minor <<<"${version:-0 0}"
    if ((major > 3 || (major == 3 && minor >= 8))); then
        echo mvn
        exit
    fi
fi
echo "$wrapper"
