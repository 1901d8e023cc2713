#!/usr/bin/env bash
# Builds an image from the redis-server (or valkey-server) of this machine.
# Usage: docker/redis-from-debian/build.sh TAG
set -euo pipefail
tag="$1"
here="$(cd "$(dirname "$0")" && pwd)"
server="$(readlink -f "$(command -v redis-server || command -v valkey-server)")"

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT
root="$context/rootfs"
mkdir -p "$root"/{usr/bin,data,tmp,etc}
chmod 1777 "$root/tmp"
cp "$server" "$root/usr/bin/redis-server"
echo 'root:x:0:0:root:/:/bin/false' >"$root/etc/passwd"

# Every library under the path by which the program's loader asks for it, and the loader itself.
ldd "$server" | sed -nE 's#^\s*(\S+ => )?(/\S+) \(0x[0-9a-f]+\)$#\2#p' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done

tar -C "$root" --owner=0 --group=0 -cf "$context/rootfs.tar" .
rm -rf "$root"
cp "$here/Dockerfile" "$context/"
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context"
