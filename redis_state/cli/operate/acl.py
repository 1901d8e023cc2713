"""`redis-state acl`: prints the least rights of a job, a reader or a maintainer."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from redis_state.acl import Role, rules
from redis_state.cli.help import example
from redis_state.config import parse
from redis_state.errors import ConfigError

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "acl",
        help="print the ACL rules of a user for Redis",
        description="Print one ACL SETUSER command with the least rights that a job needs, for "
        "redis-cli. Without --password-file the user has no password yet and cannot log in.",
        epilog=example(
            "redis-state acl --version 7.2 --user flights --password-file /run/secrets/redis"
        ),
    )
    parser.add_argument("--version", required=True, help="version of the server, such as 7.2")
    role = parser.add_mutually_exclusive_group()
    role.add_argument(
        "--reader", action="store_true", help="rights for live reads, which change nothing"
    )
    role.add_argument(
        "--maintainer", action="store_true", help="rights for redis-state maintain and purge"
    )
    parser.add_argument(
        "--user", default="redis-state", help="name of the user (default: redis-state)"
    )
    parser.add_argument("--key-prefix", metavar="PREFIX", help="the option keyPrefix of the job")
    parser.add_argument(
        "--durability",
        default="none",
        metavar="WHAT",
        help="the option durability of the job; aof needs the right to read settings of a server "
        "before 7.2",
    )
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="file that holds the password, which is printed as SHA-256 only",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the `ACL SETUSER` command."""
    role = Role.READER if arguments.reader else Role.JOB
    role = Role.MAINTAINER if arguments.maintainer else role
    given = {"keyPrefix": arguments.key_prefix, "durability": arguments.durability}
    checked = parse({"url": "redis://localhost", **given})
    words = ["ACL", "SETUSER", _checked_user(arguments.user)]
    words += rules(
        role,
        version=arguments.version,
        key_prefix=checked.key_prefix,
        durability=checked.durability,
    )
    if arguments.password_file is not None:
        words.append(f"#{_sha256_of(arguments.password_file)}")
    print(shlex.join(words))
    return 0


def _checked_user(user: str) -> str:
    if not user or any(character.isspace() or character == "\0" for character in user):
        raise ConfigError(
            "writing ACL rules",
            found="a user's name is empty or has blanks",
            advice="Give a name without blanks.",
        )
    return user


def _sha256_of(path: str) -> str:
    # The option passwordFile reads a file the same way.
    password = parse({"url": "redis://localhost", "passwordFile": path}).read_password()
    if password is None:
        raise ConfigError(
            "reading --password-file",
            found=f"{Path(path).name} holds no password",
            advice="Write the password into the file, and nothing else.",
        )
    return hashlib.sha256(password.encode()).hexdigest()
