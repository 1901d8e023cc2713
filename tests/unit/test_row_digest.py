"""The digest of rows that docs/format.md, section 13, defines: it is the same everywhere."""

from __future__ import annotations

import random

from redis_state.exports.digest import RowDigest, digest_sum, digest_text

ROWS = [(b"", b""), (b"k", b""), (b"", b"k"), (b"key", bytes(range(256)) * 40)]


def digest_of(family: str, rows: list[tuple[bytes, bytes]]) -> str:
    digest = RowDigest(family)
    digest.add(rows)
    assert digest.rows == len(rows)
    return digest_text(digest.value)


def test_digest_equals_the_page() -> None:
    assert digest_of("default", []) == "0" * 32
    assert digest_of("default", ROWS[1:2]) == "ad936fb3bdc705c4e62ff6e49529a8f5"
    assert digest_of("größe", ROWS) == "5c972e8c3964d83ca3db531dd0e7d00a"


def test_digest_ignores_only_order_and_parts() -> None:
    whole = digest_of("f", ROWS)
    assert digest_of("f", random.Random(1).sample(ROWS, len(ROWS))) == whole
    parts = [int(digest_of("f", [row]), 16) for row in ROWS]
    assert digest_text(digest_sum(parts)) == whole
    others = [digest_of("g", ROWS), digest_of("f", ROWS[1:]), digest_of("f", [*ROWS, ROWS[0]])]
    assert len({whole, *others}) == 4
    assert digest_of("f", [(b"ab", b"c")]) != digest_of("f", [(b"a", b"bc")])
