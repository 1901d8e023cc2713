#!/usr/bin/env bash
# Builds an image from a server program: by default the redis-server or valkey-server of this machine, else one that
# tools/servers.py brought.
# Usage: docker/redis-from-debian/build.sh TAG [PROGRAM]
set -euo pipefail
tag="$1"
here="$(cd "$(dirname "$0")" && pwd)"
server="$(readlink -f "${2:-$(command -v redis-server || command -v valkey-server)}")"

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT
root="$context/rootfs"
mkdir -p "$root"/{usr/bin,usr/lib,usr/lib64,data,tmp,etc}
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
chmod 1777 "$root/tmp"
echo 'root:x:0:0:root:/:/bin/false' >"$root/etc/passwd"

packages="$(dirname "$server")/root"
if [[ -d "$packages" ]]; then
    # The program came with the libraries of its own release; its loader is looked for in /lib or /lib64.
    cp -r "$packages/usr/lib/." "$root/usr/lib/"
    cp -L "$(find "$packages/usr/bin" -name '*-server')" "$root/usr/bin/redis-server"
    loader="$(find "$root/usr/lib" -name 'ld-linux-*.so.*' | head -n 1)"
    cp -L "$loader" "$root/usr/lib/"
    cp -L "$loader" "$root/usr/lib64/"
else
    cp "$server" "$root/usr/bin/redis-server"
    # Every library under the path by which the program's loader asks for it, and the loader itself.
    ldd "$server" | sed -nE 's#^\s*(\S+ => )?(/\S+) \(0x[0-9a-f]+\)$#\2#p' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
fi

tar -C "$root" --owner=0 --group=0 -cf "$context/rootfs.tar" .
rm -rf "$root"
cp "$here/Dockerfile" "$context/"
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context"
