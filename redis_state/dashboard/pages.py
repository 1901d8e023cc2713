"""Pages of the dashboard: from a request to HTML."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from redis_state._version import __version__
from redis_state.dashboard import words
from redis_state.dashboard.access import LOGIN, SESSION_S, Sessions, cookie_of
from redis_state.dashboard.listing import LINES_MAX, choice_of, chosen, heads
from redis_state.dashboard.lookup import (
    SHOWN_MAX,
    VERSION_MAX,
    KeyEntry,
    LookupForm,
    LookupTarget,
    Past,
    open_place,
)
from redis_state.dashboard.plots import LEVELS, MAP_COLUMNS, heat_map, line
from redis_state.dashboard.samples import Sample, mean_ms, versions_a_minute
from redis_state.dashboard.settings import Settings
from redis_state.dashboard.watch import Line, View, Watch
from redis_state.errors import Kind, RedisStateError
from redis_state.ids import DEFAULT_STORE
from redis_state.live import Reader
from redis_state.reader import StoreStatus
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.status import figures
from redis_state.status.figures import NOTHING

BODY_MAX = 64 * 1024
FIELDS_MAX = 512
BODY_S = 10.0
LOOKUPS_MAX = 8
"""Look-ups at once: each may wait for Redis, and all pages share the threads."""

PARTITIONS_SHOWN = 1000
PROBLEMS_SHOWN = 50
_FIRST_LOOK_S = 2.0
_FORM_TYPE = "application/x-www-form-urlencoded"
_REFRESH_MIN_S = 5
_STATUS = {
    Kind.CONFIG: 400,
    Kind.USAGE: 400,
    Kind.LIMIT: 400,
    Kind.PERMISSION: 403,
    Kind.NOT_FOUND: 404,
    Kind.VERSION_EXPIRED: 410,
    Kind.STATE_LOST: 410,
    Kind.UNAVAILABLE: 503,
}
_TROUBLE = {
    Kind.UNAVAILABLE: "Redis cannot be reached.",
    Kind.PERMISSION: "Redis refuses the request: a right is missing.",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A line over time, with its newest value as text."""

    title: str
    newest: str
    low: str
    high: str
    picture: str | None
    note: str


class Pages:
    """All pages of one dashboard."""

    def __init__(
        self, *, settings: Settings, sessions: Sessions, watch: Watch, reader: Reader
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._watch = watch
        self._reader = reader
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)
        self._refresh_s = max(_REFRESH_MIN_S, round(settings.interval_s))
        self._templates = Environment(
            loader=PackageLoader("redis_state.dashboard"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        filters = (figures.count, figures.size, words.rate, words.short, words.moment)
        self._templates.filters.update({one.__name__: one for one in filters})
        self._templates.globals.update(
            source=reader.client.url,
            version=__version__,
            refresh_s=0,
            guarded=sessions.needed,
            log_in=False,
        )

    def queries(self, request: Request) -> Response:
        """Renders the list of all queries."""
        view = self._view()
        choice = choice_of(request.query_params, refresh_s=self._refresh_s)
        lines = chosen((view.lines or {}).values(), choice)
        return self._page(
            "queries.html",
            200 if view.lines is not None or view.error is None else 503,
            view=view,
            choice=choice,
            heads=heads(choice),
            lines=lines[:LINES_MAX],
            found=len(lines),
            interval_s=self._refresh_s,
            refresh_s=choice.refresh_s,
        )

    def query(self, request: Request) -> Response:
        """Renders one query."""
        view = self._view()
        shown = self._line(request, view)
        if isinstance(shown, Response):
            return shown
        choice = choice_of(request.query_params, refresh_s=self._refresh_s)
        return self._page(
            "query.html",
            view=view,
            line=shown,
            stores=[_store(store) for store in shown.status.stores],
            charts=_charts(self._watch.samples(shown.status.gen), shown),
            problems=shown.status.problems[:PROBLEMS_SHOWN],
            levels=LEVELS,
            map_columns=MAP_COLUMNS,
            partitions_shown=PARTITIONS_SHOWN,
            interval_s=self._refresh_s,
            refresh_s=choice.refresh_s,
        )

    def key_form(self, request: Request) -> Response:
        """Renders the form that asks for a key."""
        return self._key_page(request, request.query_params, asked=None)

    async def key(self, request: Request) -> Response:
        """Renders a key's value; the key comes in the body, so no log or history records it."""
        fields = await _fields(request)
        asked = _asked(fields)
        return await run_in_threadpool(self._key_page, request, fields, asked=asked)

    def login_form(self, request: Request) -> Response:  # noqa: ARG002  # as Starlette calls it
        """Renders the form that asks for the token."""
        return self._login_page(200, wrong=False)

    async def login(self, request: Request) -> Response:
        """Opens a session."""
        session = self._sessions.open((await _fields(request)).get("token", "").strip())
        if session is None:
            return self._login_page(403, wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            cookie_of(request),
            session,
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=self._settings.tls,
        )
        return answer

    async def logout(self, request: Request) -> Response:
        """Ends the session."""
        self._sessions.close(request.cookies.get(cookie_of(request), ""))
        answer = RedirectResponse(LOGIN if self._sessions.needed else "/", 303)
        answer.delete_cookie(
            cookie_of(request), httponly=True, samesite="strict", secure=self._settings.tls
        )
        return answer

    def failed(self, request: Request, error: Exception) -> Response:
        """Renders an HTTP error: a refused request, or an unknown page."""
        if not isinstance(error, HTTPException):
            raise error
        title = "There is no such page" if error.status_code == 404 else "This was not answered"
        text = "The address is wrong." if error.status_code == 404 else error.detail
        # The login page is public; what was read from Redis is not.
        known = self._sessions.knows(request.cookies.get(cookie_of(request), ""))
        view = self._view() if known or not self._sessions.needed else None
        return self._page(
            "message.html",
            error.status_code,
            view=view,
            log_in=view is None,
            title=title,
            text=text,
        )

    def _key_page(
        self, request: Request, parameters: Mapping[str, str], *, asked: KeyEntry | None
    ) -> Response:
        if not self._lookups.acquire(blocking=False):
            return self._message(503, "Many look-ups wait for Redis", "Try again in a moment.")
        try:
            return self._looked_up(request, parameters, asked=asked)
        finally:
            self._lookups.release()

    def _looked_up(
        self, request: Request, parameters: Mapping[str, str], *, asked: KeyEntry | None
    ) -> Response:
        view = self._view()
        shown = self._line(request, view)
        if isinstance(shown, Response):
            return shown
        place = _place(shown.status.gen, parameters)
        form: LookupForm | None = None
        value: str | None = None
        history: list[Past] = []
        no_history: RedisStateError | None = None
        error: RedisStateError | None = None
        try:
            opened = open_place(self._reader, place)
            form = opened.form
            if asked is not None:
                value = opened.value(asked)
        except RedisStateError as raised:
            error = raised
        else:
            # The history may be gone or damaged while the value is still right.
            try:
                history = opened.history(asked) if asked is not None else []
            except RedisStateError as raised:
                no_history = raised
        return self._page(
            "key.html",
            200 if error is None else _STATUS.get(error.kind, 500),
            view=view,
            line=shown,
            place=place,
            form=form,
            asked=asked,
            value=None if value is None else value[:SHOWN_MAX],
            cut=0 if value is None else max(0, len(value) - SHOWN_MAX),
            error=error,
            history=history,
            no_history=no_history,
        )

    def _line(self, request: Request, view: View) -> Line | Response:
        gen = str(request.path_params["gen"])
        found = (view.lines or {}).get(gen)
        if found is not None:
            return found
        gone = self._watch.gone(gen)
        if gone is not None:
            title, since_ms = gone
            return self._message(
                404,
                "The query is gone",
                f"The state of “{title}” is no longer in Redis: it was purged, or it expired. The "
                f"dashboard first missed it at {words.moment(since_ms)}.",
            )
        if view.lines is None and view.error is not None:
            return self._message(503, _TROUBLE.get(view.error.kind, "No reading succeeded."), "")
        return self._message(
            404, "There is no such query", "Redis has no state of this checkpoint."
        )

    def _view(self) -> View:
        return self._watch.view(wait_s=_FIRST_LOOK_S)

    def _login_page(self, status: int, *, wrong: bool) -> Response:
        return self._page("login.html", status, view=None, wrong=wrong, log_in=True)

    def _message(self, status: int, title: str, text: str) -> Response:
        return self._page("message.html", status, view=self._view(), title=title, text=text)

    def _page(self, name: str, status: int = 200, **values: Any) -> Response:
        view: View | None = values["view"]
        trouble = ""
        if view is not None and view.error is not None:
            trouble = _TROUBLE.get(view.error.kind, "The queries cannot be listed.")
        return HTMLResponse(
            self._templates.get_template(name).render(trouble=trouble, **values), status
        )


async def _fields(request: Request) -> dict[str, str]:
    """Reads the fields of a form.

    Raises:
        HTTPException: The body is not a form, is too large, or comes too slowly.
    """
    if request.headers.get("content-type", "").partition(";")[0] != _FORM_TYPE:
        raise HTTPException(415, "The request carries no form.")
    body = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > BODY_MAX:
                raise HTTPException(413, f"A form may have {BODY_MAX // 1024} KiB.")

    try:
        await asyncio.wait_for(read(), BODY_S)
    except asyncio.TimeoutError:
        raise HTTPException(408, "The form came too slowly.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The form was cut off.") from None
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise HTTPException(400, "The form is malformed.") from None
    return dict(pairs)


def _asked(fields: Mapping[str, str]) -> KeyEntry:
    texts: list[str | None] = []
    while f"column.{len(texts)}" in fields:
        number = len(texts)
        texts.append(None if f"null.{number}" in fields else fields[f"column.{number}"])
    version = fields.get("version", "").strip()
    return KeyEntry(tuple(texts), _number(version, "version") if version else None)


def _place(gen: str, parameters: Mapping[str, str]) -> LookupTarget:
    return LookupTarget(
        gen,
        _number(parameters.get("operator", "0"), "operator"),
        parameters.get("store", DEFAULT_STORE),
        parameters.get("family", DEFAULT_FAMILY),
    )


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) < VERSION_MAX):
        raise HTTPException(400, f"The {name} has to be a whole number.")
    return int(text)


def _store(store: StoreStatus) -> dict[str, Any]:
    owners = Counter(
        (one.owner.host, one.owner.executor_id) for one in store.partitions if one.owner
    )
    return {
        "status": store,
        "maps": (
            ("Rows", figures.count, heat_map(store.partitions, of="rows")),
            ("Size", figures.size, heat_map(store.partitions, of="bytes")),
        ),
        "owners": sorted(owners.items()),
        "unserved": len(store.partitions) - sum(owners.values()),
    }


def _charts(samples: list[Sample], shown: Line) -> list[Chart]:
    batches = "Versions a minute" if shown.batch is None else "Batches a minute"
    rates = versions_a_minute(samples)
    return [
        _chart(
            "Rows", samples, [int(one.rows) for one in samples], figures.count, "in all partitions"
        ),
        _chart(
            "Size in Redis",
            samples,
            [int(one.bytes) for one in samples],
            figures.size,
            "all versions",
        ),
        _chart(batches, samples, rates, words.rate, "in the last minute"),
        _chart(
            "Lag", samples, [int(one.lag) for one in samples], figures.count, "since a snapshot"
        ),
        _chart(
            "Opening a version",
            samples,
            mean_ms(samples, "opens", "open_ms"),
            words.took,
            "a partition, on average",
        ),
        _chart(
            "Committing a version",
            samples,
            mean_ms(samples, "commits", "commit_ms"),
            words.took,
            "a partition, on average",
        ),
    ]


def _chart(title: str, samples: list[Sample], values: list[Any], text: Any, note: str) -> Chart:
    known = [value for value in values if value is not None]
    newest = text(values[-1]) if values else NOTHING
    low, high = (text(min(known)), text(max(known))) if known else (NOTHING, NOTHING)
    picture = None
    if len(known) > 1:
        began_ms = samples[0].at_ms
        points = [
            ((one.at_ms - began_ms) / 1000, value)
            for one, value in zip(samples, values, strict=True)
        ]
        picture = line(points, label=f"{title}: now {newest}, from {low} to {high}")
    return Chart(title, newest, low, high, picture, note)
