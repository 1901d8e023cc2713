#!/usr/bin/env bash
# Makes sure that a Chromium is there for the tests of the dashboard, where root can install it.
# Without one these tests are skipped, which CI does not allow.
# Usage: tools/ensure_chromium.sh
set -euo pipefail

have_browser() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome >/dev/null
}

have_browser && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing chromium with apt-get"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends chromium; } </dev/null >/dev/null || true
    have_browser && exit 0
fi
echo "note: no chromium on PATH: the tests of the dashboard in a browser will be skipped" >&2
