"""`redis-state diff`: prints what changed between two versions, of one query or of two."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.arguments.place import (
    add_columns,
    add_query,
    add_store,
    at_of,
    state_with_columns,
)
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet, column, numbers
from redis_state.cli.output.state_types import STRING, Types, types_of
from redis_state.errors import ConfigError, NotFoundError
from redis_state.ids import text_number
from redis_state.live import Reader
from redis_state.protocol.kept import is_keep_name
from redis_state.reader import OperatorState
from redis_state.reader.comparison import LIMIT, Comparison, FamilyDifference
from redis_state.reader.feed.family_location import NO_BATCH
from redis_state.reader.version_request import CONFIRMED

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_WHAT = "comparing two versions"
_AT = "@"


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "diff",
        help="print what changed between two versions, of one query or of two",
        description="Print the keys of one store whose values differ between the states after two "
        "batches, in no order: the change ('inserted', 'updated' or 'removed'), the key, and the "
        "values before and after. Only what these batches wrote is read, never the whole state. "
        "With a second query instead, such as a fork, print what differs between the two: counts "
        "of every store and family, and the first different keys with both values. Segments that "
        "both have are not read.",
        epilog=example(
            "redis-state diff flights 40 41 --url redis://localhost:6379/0",
            "redis-state diff flights 40 --json",
            "redis-state diff flights before-deploy",
            "redis-state diff flights what-if",
            "redis-state diff flights@before-deploy what-if@41 --json",
        ),
    )
    add_query(parser)
    parser.add_argument(
        "a",
        type=_word,
        metavar="VERSION",
        help="a batch, or the name of a kept version; -1 is the empty state before all batches. Or "
        "a second query: both queries may be written QUERY@VERSION",
    )
    parser.add_argument(
        "b",
        type=_word,
        nargs="?",
        metavar="VERSION",
        help="another batch or name (default: the newest batch that the query has confirmed)",
    )
    add_store(parser)
    add_columns(parser)
    parser.add_argument(
        "--limit",
        type=int,
        metavar="KEYS",
        help=f"print at most so many keys (default: of two queries {LIMIT}, of one all)",
    )
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the changes."""
    if arguments.limit is not None and arguments.limit < 0:
        raise ConfigError(_WHAT, found="--limit is below 0", advice="Give 0 or more.")
    with Reader(config_of(arguments)) as reader:
        if _are_queries(reader, arguments):
            return _compare(reader, arguments)
        a = _version(arguments.a)
        b = None if arguments.b is None else _version(arguments.b)
        state = state_with_columns(reader, arguments)
        sheet = Sheet(
            islice(_rows(state, a, b), arguments.limit), types=lambda: _types(state, a, b)
        )
        printing.emit(arguments, sheet)
    return 0


def _word(text: str) -> str | int:
    """Returns the number of a batch, or the text of anything else."""
    if text == str(NO_BATCH):
        return NO_BATCH
    batch = text_number(text)
    return text if batch is None else batch


def _version(word: str | int) -> str | int:
    if isinstance(word, str) and not is_keep_name(word):
        raise ConfigError(
            _WHAT,
            found=f"'{word}' is neither a batch nor the name of a kept version",
            advice="Give the id of a batch, such as 41, a name, or a second query.",
        )
    return word


def _are_queries(reader: Reader, arguments: argparse.Namespace) -> bool:
    """Returns whether the second argument is a query, and not a version of the first.

    Raises:
        ConfigError: It is both.
        NotFoundError: It is neither.
    """
    text = arguments.a
    if arguments.b is not None or isinstance(text, int):
        return False
    if _AT in text or _AT in arguments.query:
        return True
    queries = reader.queries()
    is_query = any(text in (one.gen, one.id, one.name) for one in queries)
    names = [one.name for one in reader.query(arguments.query).kept()]
    if is_query and text in names:
        raise ConfigError(
            _WHAT,
            found=f"'{text}' is a kept version of '{arguments.query}' and a query",
            advice=f"Write '{text}@{CONFIRMED}' for the query, or '{arguments.query}@{text}' for "
            "the version.",
        )
    if not is_query and text not in names:
        raise NotFoundError(
            _WHAT,
            found=f"'{text}' is neither a kept version of '{arguments.query}' nor a query",
            advice=f"Kept versions: {', '.join(names) or 'none'}. Queries: "
            f"{', '.join(one.title for one in queries) or 'none'}.",
        )
    return is_query


def _split(reader: Reader, text: str) -> tuple[str, str | int]:
    """Returns query and version of QUERY@VERSION; a query may have the sign in its own name."""
    if any(text in (one.gen, one.id, one.name) for one in reader.queries()):
        return text, CONFIRMED
    query, separator, at = text.rpartition(_AT)
    return (query, at_of(at)) if separator else (text, CONFIRMED)


def _compare(reader: Reader, arguments: argparse.Namespace) -> int:
    if arguments.columns is not None:
        raise ConfigError(
            _WHAT,
            found="--columns chooses columns of one store",
            advice="Omit it: all stores of the two queries are compared.",
        )
    form = printing.format_of(arguments)
    if form not in (printing.TABLE, printing.JSON):
        raise ConfigError(
            _WHAT,
            found=f"--format {form} is for rows of one store",
            advice="Give --format json, or table.",
        )
    (a, at_a), (b, at_b) = (_split(reader, one) for one in (arguments.query, arguments.a))
    line = ProgressLine()
    try:
        found = reader.diff(
            a,
            b,
            at_a=at_a,
            at_b=at_b,
            limit=LIMIT if arguments.limit is None else arguments.limit,
            text=arguments.text,
            progress=line,
        )
    finally:
        line.end()
    if form == printing.JSON:
        printing.emit(arguments, Sheet([_json(found)]))
        return 0
    printing.emit(arguments, Sheet(_counts(found), _COLUMNS))
    keys = [
        {
            "operator": one.operator,
            "store": one.store,
            "family": one.family,
            "key": one.key,
            "in a": one.a,
            "in b": one.b,
        }
        for one in found.keys
    ]
    if keys:
        more = "" if found.complete else f"The first {len(keys)} keys; --limit prints more."
        print()
        printing.emit(arguments, Sheet(keys, notes=[more] if more else []))
    return 0


def _counts(found: Comparison) -> list[dict[str, Any]]:
    return [
        {"operator": store.operator, "store": store.store, **_family(one)}
        for store in found.stores
        for one in store.families
    ]


def _family(one: FamilyDifference) -> dict[str, Any]:
    return {
        "family": one.name,
        "only_a": one.only_a,
        "only_b": one.only_b,
        "changed": one.changed,
        "equal": one.equal,
    }


_COLUMNS = (
    numbers("operator"),
    column("store"),
    column("family"),
    numbers("only_a", title="ONLY IN A"),
    numbers("only_b", title="ONLY IN B"),
    numbers("changed"),
    numbers("equal"),
)


def _json(found: Comparison) -> dict[str, Any]:
    return {
        "batch_a": found.batch_a,
        "batch_b": found.batch_b,
        "differs": found.differs,
        "stores": [
            {
                "operator": store.operator,
                "store": store.store,
                "name": store.name,
                "partitions": store.partitions,
                "common": store.common,
                "only_a": store.only_a,
                "only_b": store.only_b,
                "changed": store.changed,
                "equal": store.equal,
                "families": [_family(one) for one in store.families],
            }
            for store in found.stores
        ],
        "keys": [
            {
                "operator": one.operator,
                "store": one.store,
                "family": one.family,
                "key": one.key,
                "a": one.a,
                "b": one.b,
            }
            for one in found.keys
        ],
        "complete": found.complete,
    }


def _types(state: OperatorState, a: str | int, b: str | int | None) -> Types:
    """Returns the types after the later batch; types it does not have come from the rows."""
    key = value = None
    later = b
    if isinstance(a, int) and isinstance(b, int):
        later = max(a, b)
    with suppress(NotFoundError, ConfigError):
        key, value = types_of(state, {} if later is None else {"at": later})
    return {"change": STRING, "key": key, "before": value, "after": value}


def _rows(state: OperatorState, a: str | int, b: str | int | None) -> Iterator[dict[str, Any]]:
    for change in state.diff(a, b):
        what = "inserted" if change.before is None else "updated"
        yield {
            "change": "removed" if change.after is None else what,
            "key": change.key,
            "before": change.before,
            "after": change.after,
        }
