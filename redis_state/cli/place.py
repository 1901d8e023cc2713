"""The arguments that name a store of a query, and a version of it."""

from __future__ import annotations

import argparse

from redis_state.errors import ConfigError
from redis_state.ids import DEFAULT_STORE, text_number
from redis_state.reader import Query
from redis_state.reader.family import DEFAULT_FAMILY


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    parser.add_argument("--operator", type=int, default=0, help="Spark's operator id (default: 0)")
    parser.add_argument("--store", default=DEFAULT_STORE, help="Spark's store name")
    parser.add_argument(
        "--family",
        default=DEFAULT_FAMILY,
        help="state variable of transformWithState (default: the one family of other operators)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--at",
        metavar="BATCH",
        help="the state after this batch, or 'confirmed', the newest one that the query has "
        "confirmed (default)",
    )
    which.add_argument(
        "--version",
        type=int,
        help="a state version instead: with Spark's own operators the number of the batch plus one",
    )


def version_of(query: Query, arguments: argparse.Namespace) -> int | None:
    """The version that is meant; ``None`` for the confirmed one.

    Raises:
        ConfigError: `--at` is neither a batch nor ``confirmed``, or no batch made the versions.
    """
    at: str | None = arguments.at
    if at is None or at == "confirmed":
        version: int | None = arguments.version
        return version
    batch = text_number(at)
    if batch is None:
        raise ConfigError(
            "choosing a batch",
            found="--at is neither a number nor 'confirmed'",
            advice="Give the id of a batch, such as --at 41.",
        )
    for store in query.status().stores:
        if (store.operator, store.store) == (arguments.operator, arguments.store):
            if store.first_batch is None:
                raise ConfigError(
                    "choosing a batch",
                    found="the versions of this store are not batches",
                    advice="Give --version.",
                )
            return max(0, batch - store.first_batch + store.first_version)
    return batch + 1
