"""Foreign entries in the registry break no tool for other queries.

One query is whole; entries of another one are odd. Every command runs over both.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.parser import text_string_to_metric_families

from redis_state import keys
from redis_state.cli.main import main
from redis_state.coordinator import StateStoreCoordinator
from redis_state.dashboard.app import application
from redis_state.dashboard.settings import checked
from redis_state.dashboard.watch import Watch
from redis_state.errors import RedisStateError
from redis_state.exporter import QueryCollector
from redis_state.live import Reader, connect
from redis_state.maintain.recall import expire, recall
from redis_state.protocol.instances import Instance
from tests.contract.planting import GEN, Planted
from tests.support.redis_server import RedisServer, bytes_of

ODD = "0" * 32
WHOLE = "whole"
ROW = ({"carrier": "UA"}, {"count": 7, "total": 0.5})
NUMBERS = ("created", "seen", "partitions", "at", "bytes", "commits", "left")

OF_ALL: tuple[tuple[str, ...], ...] = (
    ("queries",),
    ("queries", "--json"),
    ("top", "--once"),
    ("top", "--once", "--sort", "name", "--format", "json"),
    ("maintain", "--once", "--deep", "--orphans", "--vanished-after", "1h"),
    ("sql", "show tables"),
)
OF_THE_WHOLE: tuple[tuple[str, ...], ...] = (
    ("show", WHOLE),
    ("size", WHOLE),
    ("get", WHOLE, "carrier=UA"),
    ("scan", WHOLE, "--json"),
    ("sql", f"select count from {WHOLE}"),
    ("doctor", "--gen", GEN),
)
OF_THE_ODD: tuple[tuple[str, ...], ...] = (
    ("show", ODD),
    ("show", ODD, "--json"),
    ("size", ODD),
    ("size", ODD, "--by", "family"),
    ("skew", ODD),
    ("hot", ODD),
    ("why-growing", ODD),
    ("why-slow", ODD),
    ("get", ODD, "carrier=UA"),
    ("history", ODD, "carrier=UA"),
    ("scan", ODD),
    ("diff", ODD, "0", "1"),
    ("changes", ODD),
    ("sql", f'select * from "{ODD}"'),
    ("doctor", "--gen", ODD),
    ("purge", "--gen", ODD, "--dry-run"),
    ("purge", "--gen", ODD, "--yes"),
    ("maintain", ODD, "--once"),
)

Entry = tuple[str, bytes | None, bytes]
"""A key, a field of it (`None`: the key itself, as a text), and what is there."""


class Scene:
    """Two queries, and the same server for each example."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url
        self.client = server.client()
        self.odd = Planted(self.client, gen=ODD, name="odd", partitions=2)
        for planted in (Planted(self.client, name=WHOLE, partitions=2), self.odd):
            planted.register()
            if planted is not self.odd:
                listing = {"path": "11", "id": "id", "name": WHOLE, "created": 1, "seen": 2}
                self.client.hset(keys.checkpoints(), GEN, json.dumps(listing))
            for version in (1, 2):
                planted.commit(version, [ROW])
        names = self.client.keys("*")
        self.first = {name: bytes_of(self.client.dump(name)) for name in names}

    def plant(self, entry: Entry) -> None:
        self.client.flushall()
        for name, dumped in self.first.items():
            self.client.restore(name, 0, dumped)
        key, field, value = entry
        if field is not None:
            with contextlib.suppress(redis.ResponseError):
                self.client.hset(key, field, value)
            return
        self.client.set(key, value)

    def run(self, *words: str) -> tuple[int, str]:
        """The exit status of a command, and what it printed; its output takes any character."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                status = main([words[0], *words[1:], "--url", self.url])
            except SystemExit as ended:
                status = int(ended.code or 0)
        text = out.getvalue() + error.getvalue()
        text.encode()
        return status, text


def place() -> dict[str, Entry]:
    """Returns one of each entry of the registry, as a writer has it."""
    planted = Planted(client=None, gen=ODD, partitions=2)  # type: ignore[arg-type]  # not used
    id_ = planted.id(0)
    instance = Instance("host", "1", "run")
    family = [0, "default", "none", [], {"type": "struct", "fields": []},
              {"type": "struct", "fields": []}, False, False]  # fmt: skip
    sizes = {"at": 1, "bytes": 2, "stateMax": 3, "prefixMax": 4, "largest": [[0, "s", 0, 9]]}

    def entry(key: str, field: str | None, value: Any) -> Entry:
        text = value if isinstance(value, str) else json.dumps(value)
        return key, None if field is None else field.encode(), text.encode()

    query, listed = keys.query(ODD), keys.checkpoints()
    listing = {"path": "00", "id": "id", "name": "odd", "created": 1, "seen": 2}
    return {
        "listed": entry(listed, ODD, listing),
        "counted": entry(listed, f"{ODD}:0:default", "2"),
        "operator": entry(
            query, "op:0:default", {"operator": "agg", "partitions": 2, "families": [family]}
        ),
        **{
            name: entry(query, name, value)
            for name, value in {
                "f": "1",
                "epoch": "1",
                "seen": "1",
                "copies": "2",
                "copied": "1 1700000000000",
                "purged": {"left": -1, "listed": {ODD: json.dumps(listing)}},
                "recalled": "1",
                "path": "00",
                "name": "odd",
                "run:run": "1 d",
                "moved:0:default": GEN,
                "moving:0:default": GEN,
                "batch:0:default": '1 0 2 run "key k: string; a processor"',
                "begun:0:default": "1 run 1 1 1 1",
                "planned:0:default": "1:1:1:1",
            }.items()
        },
        "instance": entry(keys.instance(id_), None, instance.encode().decode()),
        "place": entry(keys.places(ODD), "0:0:default", "1"),
        "totals": entry(keys.totals(ODD), "0:0:default", {**instance.members, "commits": 1}),
        "errors": entry(keys.totals(ODD), "lost:0:default", "1"),
        "size": entry(keys.sizes(), ODD, sizes),
        "look": entry(keys.looks(), ODD, {"at": 1, "mark": "00"}),
        "name": entry(keys.names(), keys.name_field("odd"), ODD),
        **{
            f"meta {name}": entry(keys.meta(id_), name, "1")
            for name in ("f", "o", "ou", "l", "lu", "n", "w", "t", "r", "e", "k", "b")
        },
    }


PLACES = place()
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""An entry is small as it is, and each attempt to make it smaller takes a second."""

LISTED = PLACES["listed"]
LIST = LISTED[0]
TEXTS = (
    st.text(max_size=8)
    | st.sampled_from(["\ud800", "a\udfff", "\ud83d\ude00"])
    | st.sampled_from(["\x1b[2J", "\r\n", "<b>", '"', "{}", "}", "\0", "…" * 300, "x" * 70_000])
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 63, -1, 10**18, 10**400, -(10**400), 1e308, math.nan, math.inf])
    | st.floats()
    | TEXTS
)
NESTED = st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=3)
VALUES = (
    SCALARS | NESTED | st.lists(NESTED, max_size=2) | st.dictionaries(TEXTS, NESTED, max_size=2)
)
RAW = st.sampled_from(
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"[" * 300 + b"]" * 300,
        b"9" * 5000,
        b"9" * 400,
        b"-1",
        b"NaN",
        b"\xed\xa0\x80",
        '"…"'.encode("utf-16"),
        b'"\\ud800"',
        b"1 1 1 1 1 1 1 1",
        b"1 " * 9,
        b"1:1:1",
        b"\xd9\xa3",
    ]
) | st.binary(max_size=12)


@st.composite
def odd_values(draw: Callable[..., Any], before: bytes) -> bytes:
    """Any bytes, any JSON, or the JSON of before with other, more or fewer members."""
    try:
        known = json.loads(before)
    except ValueError:
        known = None
    ways = ["raw", "json", *(["member"] * 4 if isinstance(known, dict) else ["word"])]
    way = draw(st.sampled_from(ways))
    if way == "raw":
        return bytes(draw(RAW))
    if way == "json":
        return json.dumps(_few(draw(VALUES))).encode()
    if way == "word":
        words = before.split(b" ")
        words[draw(st.integers(0, len(words) - 1))] = draw(RAW)
        return b" ".join(words)
    _spoil(draw, known)
    return json.dumps(known).encode()


def _spoil(draw: Callable[..., Any], known: Any) -> None:
    """Change something within a JSON value, however deep."""
    names = list(known) if isinstance(known, dict) else list(range(len(known)))
    if not names:
        known.update({"x": draw(VALUES)}) if isinstance(known, dict) else known.append(draw(VALUES))
        return
    name = draw(st.sampled_from(names))
    if isinstance(known[name], (dict, list)) and draw(st.booleans()):
        _spoil(draw, known[name])
    elif draw(st.integers(0, 4)) == 0:
        del known[name]
    else:
        known[name] = _few(draw(VALUES))


def _few(value: Any) -> Any:
    """A million partitions can be; they are only slow."""
    return 1000 if type(value) is int and 1000 < value <= 1 << 20 else value


@st.composite
def odd_entries(draw: Callable[..., Any]) -> Entry:
    """One entry of the registry that is odd in its value, its field or its type."""
    key, field, value = PLACES[draw(st.sampled_from(sorted(PLACES)))]
    way = draw(st.integers(0, 9))
    if way == 0 and key != LIST:
        return key, None, draw(RAW)
    if way == 1 and field is not None:
        return key, draw(odd_fields(field)), value
    return key, field, draw(odd_values(value))


def odd_fields(field: bytes) -> st.SearchStrategy[bytes]:
    """Names beside the one that a writer has."""
    head, _, _ = field.partition(b":")
    more = st.sampled_from(
        [b":", b":0", b":0:", b":-1:default", b":" + b"9" * 400 + b":s", b"\xff"]
    )
    return RAW | more.map(lambda tail: head + tail) | TEXTS.map(_utf8)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with RedisServer() as server:
        yield Scene(server)


MANIFEST = PLACES["meta t"][0]


def listed(**members: Any) -> Entry:
    """The entry of the odd query in the list, with other members."""
    return LISTED[0], LISTED[1], json.dumps(json.loads(LISTED[2]) | members).encode()


EXAMPLES: list[Entry] = [
    listed(name="\ud800"),
    listed(name=None),
    listed(created=10**400),
    listed(seen=1 << 62),
    (LISTED[0], b"no checkpoint", b"{}"),
    (LISTED[0], b"\xff\x00", b"{}"),
    (LISTED[0], LISTED[1], b"\xff"),
    (LISTED[0], LISTED[1], b"[" * 100_000),
    (MANIFEST, b"t", b"9" * 400),
    (keys.query(ODD), None, b"a text"),
    (MANIFEST, None, b"a text"),
    (keys.totals(ODD), None, b"a text"),
    (keys.sizes(), None, b"a text"),
]


@pytest.mark.parametrize("entry", EXAMPLES, ids=lambda entry: ascii(entry)[:60])
def test_an_odd_entry_takes_no_tool_away(scene: Scene, entry: Entry) -> None:
    look_at_all(scene, entry)


@pytest.mark.parametrize(
    ("entry", "gen", "said"),
    [
        (listed(name=None), ODD, "its entry in the list of checkpoints cannot be read"),
        (listed(seen=-1), ODD, "'seen' is not a whole number"),
        ((LIST, f"{ODD}:0:default".encode(), b"two"), ODD, "an entry for its partitions"),
        ((LIST, b"neither", b"{}"), "entry-", "an entry 'neither', which is not a gen"),
        ((LIST, b"\xff", b"{}"), "entry-", r"an entry '\xff', which is not a gen"),
        ((keys.query(ODD), None, b"a text"), ODD, "a key of another type"),
        ((keys.query(ODD), b"op:0:default", b"[]"), ODD, "not a JSON object"),
    ],
    ids=lambda one: ascii(one)[:50],
)
def test_an_odd_entry_is_one_problem_with_its_gen(
    scene: Scene, entry: Entry, gen: str, said: str
) -> None:
    scene.plant(entry)
    with connect(scene.url) as reader:
        problems = {one.gen: one.problems for one in reader.status() if one.problems}
        assert [[said in text for text in one] for one in problems.values()] == [[True]]
        (found,) = problems
        assert found.startswith(gen)
    status, text = scene.run("maintain", "--once")
    assert status == 4
    assert text.count("problem: ") == 1
    assert re.search(r"[24] partitions of", text)
    _, text = scene.run("queries", "--json")
    assert said.replace("\\", "\\\\") in text
    assert [name for name, value in scrape(scene.url).items() if name[0].endswith("problems")
            and value] == [("redis_state_problems", found)]  # fmt: skip
    ((status, page_),) = asyncio.run(browse(scene.url, f"/query/{found}"))
    assert status == 200
    assert said in html.unescape(page_)
    if gen == ODD:
        assert said in scene.run("show", ODD)[1]
    if gen == ODD and entry[0] == LIST:
        assert said in scene.run("doctor", "--gen", ODD)[1]


def test_a_name_with_half_a_character_is_shown_with_another_one(scene: Scene) -> None:
    scene.plant(listed(name="a\ud800"))
    with connect(scene.url) as reader:
        assert reader.query("a\ufffd").info.gen == ODD
        assert all(not one.problems for one in reader.status())


@settings(max_examples=6, deadline=None, phases=PHASES)
@given(entry=odd_entries())
def test_no_odd_entry_takes_a_tool_away(scene: Scene, entry: Entry) -> None:
    look_at_all(scene, entry)


@pytest.mark.long
@settings(max_examples=500, deadline=None, phases=PHASES)
@given(entry=odd_entries())
def test_none_of_many_odd_entries_takes_a_tool_away(scene: Scene, entry: Entry) -> None:
    look_at_all(scene, entry)


def look_at_all(scene: Scene, entry: Entry) -> None:
    """Run each tool over both queries; the whole one is there everywhere, as it was."""
    scene.plant(entry)
    for words in OF_ALL:
        status, text = scene.run(*words)
        assert status in (0, 4), (words, text)
        if words[0] != "maintain":
            assert WHOLE in text, words
    for words in OF_THE_WHOLE:
        status, text = scene.run(*words)
        assert status == 0, (words, text)
    scraped = scrape(scene.url)
    assert scraped["redis_state_up", ""] == 1
    assert scraped["redis_state_rows", GEN] == 1
    pages = asyncio.run(browse(scene.url, "/", f"/query/{GEN}", f"/query/{ODD}"))
    assert [status for status, _ in pages] == [200, 200, pages[2][0]]
    assert pages[2][0] in (200, 404)
    assert WHOLE in pages[0][1]
    for words in OF_THE_ODD:
        status, text = scene.run(*words)
        assert status in (0, 1, 3, 4), words
        # A script says of a damaged manifest how it failed.
        assert "defect" not in text or "user_script" in text, (words, text)
    with connect(scene.url) as reader:
        call_back(reader)
    coordinate(scene.url)


def scrape(url: str) -> Mapping[tuple[str, str], float]:
    with connect(url) as reader:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(QueryCollector(reader))
        text = b"".join(serve(registry, "text/plain")).decode()
        assert b"".join(serve(registry, "application/openmetrics-text")).endswith(b"# EOF\n")
    return {
        (sample.name, sample.labels.get("gen", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def serve(registry: CollectorRegistry, accepted: str) -> list[bytes]:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_ACCEPT": accepted}
    answered: list[bytes] = make_wsgi_app(registry)(environ, lambda *_: None)
    return answered


async def browse(url: str, *paths: str) -> list[tuple[int, str]]:
    """Status and text of pages of a dashboard, without a socket."""
    settings_ = checked(
        address="127.0.0.1", port=0, names=(), token_file=None, cert_file=None, key_file=None,
        interval_s=10.0,
    )  # fmt: skip
    with connect(url) as reader:
        watch = Watch(reader, interval_s=10.0)
        watch.look()
        watch.look()
        app = application(reader, watch, settings_)
        return [await page(app, path) for path in paths]


async def page(app: Any, path: str) -> tuple[int, str]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "server": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in sent)
    return sent[0]["status"], body.decode()


def call_back(reader: Reader) -> None:
    """A purge and a recall of the odd query bring its entries back byte for byte, or refuse."""

    def entries() -> dict[bytes, bytes]:
        (raw,) = reader.client.call("looking", [("HGETALL", keys.checkpoints())])
        return {name: value for name, value in raw.items() if name.startswith(ODD.encode())}

    with contextlib.suppress(RedisStateError):
        recall(reader.client, ODD)
    before = entries()
    with contextlib.suppress(RedisStateError):
        expire(reader.client, ODD)
        recall(reader.client, ODD)
        assert entries().items() >= before.items()


def coordinate(url: str) -> None:
    """Whoever asks who serves a query gets an answer, or an error of redis-state."""
    coordinator = StateStoreCoordinator(url, threaded=False)
    try:
        with contextlib.suppress(RedisStateError):
            coordinator.reference("odd").instances()
    finally:
        coordinator.stop()
