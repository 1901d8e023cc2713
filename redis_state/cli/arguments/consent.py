"""Arguments by which the user confirms changes."""

from __future__ import annotations

from redis_state.cli.arguments.place import Adds


def add_yes(parser: Adds) -> None:
    """Adds the flag without which a command only prints what it would do."""
    parser.add_argument("--yes", action="store_true", help="make the changes")


def add_force(parser: Adds) -> None:
    """Adds the flag that overrides the check for a running query."""
    parser.add_argument(
        "--force", action="store_true", help="proceed even if the query seems to run"
    )
