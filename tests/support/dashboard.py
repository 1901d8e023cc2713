"""A dashboard as its own process, a browser's side of HTTP for it, and queries for it to show."""

from __future__ import annotations

import http.client
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from redis_state import (
    StateStoreCoordinator,
    StateStoreId,
    StateStoreProvider,
    StateStoreProviderId,
)
from redis_state.backend.client import Client
from redis_state.config import parse

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11

_HTTP_S = 30
_END_S = 20
_VOID = frozenset({"meta", "link", "input", "br", "rect", "path"})


@dataclass(frozen=True)
class Answer:
    """Response of the dashboard."""

    status: int
    headers: http.client.HTTPMessage
    body: str

    @property
    def page(self) -> Page:
        found = Page()
        found.feed(self.body)
        return found

    @property
    def text(self) -> str:
        """The words that a person reads, with single blanks between."""
        return self.page.text


class Page(HTMLParser):
    """The words of a page, its tables by caption, its facts, and what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.facts: dict[str, str] = {}
        self._term = ""
        self._rows: list[list[str]] = []
        self._caption = ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        match tag:
            case "table":
                self._rows, self._caption = [], ""
            case "tr":
                self._rows.append([])
            case "td" | "th":
                self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[" ".join(self._caption.split())] = self._rows

    def handle_data(self, data: str) -> None:
        if "title" in self.open:
            return
        self.words.append(data)
        if self.open and self.open[-1] == "dt":
            self._term = data
        elif "dd" in self.open:
            self.facts[self._term] = self.facts.get(self._term, "") + data
        if self.open and "caption" in self.open:
            self._caption += data
        elif any(tag in ("td", "th") for tag in self.open):
            self._rows[-1][-1] += data.strip()


class Dashboard:
    """`redis-state dashboard` on a free port of loopback.

    Args:
        arguments: More of the command's.
        log: Where its standard error goes.
        authority: PEM file by which a browser trusts it, if it serves TLS.
    """

    def __init__(
        self,
        url: str,
        *arguments: str,
        log: Path,
        authority: Path | None = None,
    ) -> None:
        command = [sys.executable, "-m", "redis_state", "dashboard", "--url", url]
        command += ["--port", "0", "--interval", "1", *arguments]
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        found = re.match(r"(https?://\S+:(\d+)/) shows the queries of ", told)
        if found is None:
            self.stop()
            raise AssertionError(f"it did not start: {told}{log.read_text()}")
        self.address, self.port = found[1], int(found[2])
        self._trust = ssl.create_default_context(cafile=authority) if authority else None
        self.cookie = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """Ends it by SIGTERM, and gives its exit status."""
        return self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> int:
        """Ends it by a signal, and gives its exit status."""
        self._process.send_signal(number)
        try:
            return self._process.wait(_END_S)
        finally:
            self._process.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def origin(self) -> str:
        return self.address.rstrip("/")

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Sends a form as a browser does from a page of the dashboard."""
        given = {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, body=urlencode(fields).encode(), headers=given)

    def send(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str]
    ) -> Answer:
        host = urlsplit(self.address).hostname or ""
        connection: http.client.HTTPConnection
        if self._trust:
            connection = http.client.HTTPSConnection(
                host, self.port, timeout=_HTTP_S, context=self._trust
            )
        else:
            connection = http.client.HTTPConnection(host, self.port, timeout=_HTTP_S)
        given = {**headers, **({"Cookie": self.cookie} if self.cookie else {})}
        try:
            connection.request(method, path, body=body or None, headers=given)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()


def write_query(
    url: str,
    name: str,
    *,
    partitions: int = 1,
    versions: int = 2,
    since: int = 0,
    rows: Callable[[int, int], Mapping[object, object]] = lambda _, version: {"ann": version},
    client: Client | None = None,
) -> None:
    """A real query of Python: each partition commits and confirms versions.

    Args:
        since: The version that is there already.
        rows: What partition and version put.
    """
    own = client or Client(parse({"url": url}))
    try:
        for partition in range(partitions):
            _write(own, url, StateStoreId(name, 0, partition), range(since, since + versions), rows)
    finally:
        if client is None:
            own.close()


@contextmanager
def serving(url: str, name: str, hosts: Sequence[str]) -> Iterator[None]:
    """Each partition is reported to be served on the host of its number, for as long as it runs."""
    coordinator = StateStoreCoordinator(url)
    try:
        query = coordinator.reference(name)
        for partition, host in enumerate(hosts):
            id_ = StateStoreProviderId(StateStoreId(name, 0, partition), "run-1")
            query.report_active_instance(id_, host, "1")
        assert len(query.instances()) == len(hosts)
        yield
    finally:
        coordinator.stop()


def _write(
    client: Client,
    url: str,
    id_: StateStoreId,
    versions: range,
    rows: Callable[[int, int], Mapping[object, object]],
) -> None:
    provider = StateStoreProvider(StateStoreProviderId(id_, "run-1"), config=url, client=client)
    try:
        for version in versions:
            store = provider.get_store(version)
            store.put_many(rows(id_.partition_id, version + 1))
            store.commit()
        provider.get_store(versions.stop).abort()
    finally:
        provider.close()
