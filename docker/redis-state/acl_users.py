"""Creates the ACL users of a job, a reader and a maintainer on servers of Redis.

    python3 acl_users.py --version 7.2 --node redis://redis:6379/0 --admin-password-file FILE \
        --user maintainer:upkeep:FILE --user reader:dashboard:FILE

The rules are those of `redis-state acl`. Redis copies no users between servers: name every node of
a Cluster, and every replica that may become master. A second run changes nothing. Where the server
has an ACL file, the users are saved there; a server without one loses them when it restarts.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import redis

from redis_state.acl import Role, rules
from redis_state.config.secret_files import read_password_file
from redis_state.errors import RedisStateError

_CONNECT_S = 10


def user_of(text: str) -> tuple[Role, str, Path]:
    """Parses ROLE:NAME:FILE."""
    role, name, file = text.split(":", 2)
    if not name or any(character.isspace() for character in name):
        raise ValueError
    return Role(role), name, Path(file)


def create(client: redis.Redis, users: list[tuple[str, list[str]]]) -> str:
    """Creates users on one server; returns why a restart loses them, else an empty text."""
    for name, words in users:
        client.execute_command("ACL", "SETUSER", name, *words)
    try:
        client.execute_command("ACL", "SAVE")
    except redis.ResponseError as error:
        return "it has no ACL file" if "ACL file" in str(error) else str(error)
    return ""


def main(words: list[str]) -> int:
    """Creates all users on all nodes."""
    parser = argparse.ArgumentParser(prog="acl_users.py", description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True, help="version of the servers, such as 7.2")
    parser.add_argument("--node", action="append", required=True, metavar="URL")
    parser.add_argument("--admin", default="default", metavar="NAME")
    parser.add_argument("--admin-password-file", metavar="FILE")
    parser.add_argument("--ca-file", metavar="FILE")
    parser.add_argument("--key-prefix", metavar="PREFIX")
    parser.add_argument(
        "--user", action="append", required=True, type=user_of, metavar="ROLE:NAME:FILE"
    )
    asked = parser.parse_args(words)
    try:
        users = []
        for role, name, file in asked.user:
            digest = hashlib.sha256(read_password_file(str(file)).encode()).hexdigest()
            found = rules(role, version=asked.version, key_prefix=asked.key_prefix)
            users.append((name, [*found, f"#{digest}"]))
        login = asked.admin_password_file and read_password_file(asked.admin_password_file)
        for node in asked.node:
            tls = {"ssl_ca_certs": asked.ca_file} if asked.ca_file else {}
            with redis.Redis.from_url(
                node,
                username=asked.admin if login else None,
                password=login,
                socket_timeout=_CONNECT_S,
                socket_connect_timeout=_CONNECT_S,
                **tls,
            ) as client:
                reason = create(client, users)
            note = f"; {reason}, so a restart loses them" if reason else ""
            print(f"{node}: {', '.join(name for name, _ in users)}{note}", flush=True)
    except (redis.RedisError, RedisStateError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
