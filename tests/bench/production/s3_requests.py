"""Requests to an S3 server, recognised in the bytes that a client sends on one connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from urllib.parse import parse_qs, unquote, urlsplit

_HEAD_BYTES_MAX = 1 << 16
_LISTS = frozenset({"list-type", "prefix", "delimiter", "max-keys", "uploads", "versions"})


def kind_of(method: str, target: str, *, copies: bool = False) -> tuple[str, str]:
    """Bucket and kind of a request in path style.

    The kinds are those of S3's price list: `PUT`, `COPY`, `POST`, `LIST`, `GET`, `HEAD`, `DELETE`.
    A `POST` that deletes many objects is a `DELETE`. Requests about a bucket are `GET`.

    Args:
        target: Path and query of the request line.
        copies: Whether the request names a source to copy from.
    """
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    kind = method.upper()
    if kind == "PUT" and copies:
        kind = "COPY"
    elif kind == "POST" and "delete" in query:
        kind = "DELETE"
    elif kind == "GET" and not key and (not query or _LISTS & query.keys()):
        kind = "LIST"
    return bucket, kind


class RequestStream:
    """Follows the requests of one connection, which may be kept alive.

    Args:
        found: Called with bucket and kind when a head is complete.

    Raises:
        ValueError: A head is malformed or longer than 64 KiB.
    """

    def __init__(self, found: Callable[[str, str], None]) -> None:
        self._found = found
        self._line = b""
        self._head: list[bytes] = []
        self._body = 0
        self._read: Callable[[bytes], None] = self._head_line

    def feed(self, data: bytes) -> bool:
        """Parses the next bytes; returns whether a request begins in these bytes."""
        begins = False
        at = 0
        while at < len(data):
            if self._body:
                skipped = min(self._body, len(data) - at)
                self._body -= skipped
                at += skipped
                continue
            begins |= self._read == self._head_line and not self._head and not self._line
            end = data.find(b"\n", at) + 1
            if len(self._line) > _HEAD_BYTES_MAX:
                raise ValueError("the head of a request is too long")
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if end:
                line, self._line = self._line.rstrip(b"\r\n"), b""
                self._read(line)
        return begins

    def _head_line(self, line: bytes) -> None:
        if line:
            self._head.append(line)
        elif self._head:  # an empty line before a request is allowed
            head, self._head = self._head, []
            self._request(head)

    def _request(self, head: list[bytes]) -> None:
        method, target, _ = head[0].decode("latin-1").split(" ")
        fields: dict[str, str] = {}
        for line in head[1:]:
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.strip().lower()] = value.strip()
        if fields.get("transfer-encoding", "").lower() == "chunked":
            self._read = self._chunk_size
        else:
            self._body = int(fields.get("content-length", 0))
        self._found(*kind_of(method, target, copies="x-amz-copy-source" in fields))

    def _chunk_size(self, line: bytes) -> None:
        size = int(line.partition(b";")[0], 16)
        if size:
            self._body = size + len(b"\r\n")
        else:
            self._read = self._trailer

    def _trailer(self, line: bytes) -> None:
        if not line:
            self._read = self._head_line


class RequestCounts:
    """Requests by bucket and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, bucket: str, kind: str) -> None:
        self._counts[bucket, kind] += 1

    def by_bucket(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (bucket, kind), count in sorted(self._counts.items()):
            found.setdefault(bucket, {})[kind] = count
        return found
