"""Access control: host names, origins, sessions, and security headers."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import traceback
from collections import OrderedDict
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from redis_state.clock import SYSTEM, Clock
from redis_state.dashboard.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSIONS_MAX = 1000
SESSION_S = 12 * 3600
LOGIN = "/login"
_OPEN = frozenset({LOGIN, "/style.css", "/icon.svg"})
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# Not `no-referrer`: a browser then sends no origin with a form, which is checked here.
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]+)?")
_LOG = logging.getLogger("redis_state.dashboard")


class Sessions:
    """Sessions of users with the token: random ids, in memory only, so a restart ends them all."""

    def __init__(self, token: str | None, *, clock: Clock = SYSTEM) -> None:
        self._token = None if token is None else _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._ends_s: OrderedDict[str, float] = OrderedDict()

    @property
    def needed(self) -> bool:
        """True if the dashboard has a token."""
        return self._token is not None

    def open(self, token: str) -> str | None:
        """Returns the id of a new session, or ``None`` for a wrong token."""
        if self._token is None or not hmac.compare_digest(self._token, _digest(token)):
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._ends_s[_digest(session).hex()] = self._clock.monotonic_s() + SESSION_S
            while len(self._ends_s) > SESSIONS_MAX:
                self._ends_s.popitem(last=False)
        return session

    def knows(self, session: str) -> bool:
        """Returns whether a session is open."""
        with self._lock:
            ends_s = self._ends_s.get(_digest(session).hex())
        return ends_s is not None and self._clock.monotonic_s() < ends_s

    def close(self, session: str) -> None:
        """Ends a session, if it exists."""
        with self._lock:
            self._ends_s.pop(_digest(session).hex(), None)


class Guard:
    """ASGI middleware that refuses requests before they reach the application."""

    def __init__(self, app: ASGIApp, *, settings: Settings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_bound(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        try:
            await (refusal or self._app)(scope, receive, send_bound)
        except Exception as error:  # noqa: BLE001  # its text may hold what a user typed
            place = "".join(traceback.format_tb(error.__traceback__))
            _LOG.error("a request failed with %s:\n%s", type(error).__name__, place)
            if not begun:
                failed = PlainTextResponse("The dashboard failed. Its log has the details.", 500)
                await failed(scope, receive, send_bound)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not self._settings.answers_to(_name_of(host)):
            return PlainTextResponse(
                "This dashboard does not serve that host name. Start it with --host NAME, or "
                "open it as http://127.0.0.1 on its own machine.",
                421,
            )
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET, HEAD and POST are answered.", 405)
        if request.method == "POST" and not _is_own(request.headers, host):
            return PlainTextResponse("The form was not sent from a page of this dashboard.", 403)
        if not self._sessions.needed or request.scope["path"] in _OPEN:
            return None
        if self._sessions.knows(request.cookies.get(cookie_of(request), "")):
            return None
        return RedirectResponse(LOGIN, 303)


def cookie_of(request: Request) -> str:
    """Returns the name of the session's cookie, with the port: browsers share cookies of a host."""
    server = request.scope.get("server") or ("", 0)
    return f"redis_state_session_{server[1]}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _name_of(host: str) -> str:
    """Returns the host of a `Host` header in lower case, without the port; empty if malformed."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found["name"].strip("[]")


def _is_own(headers: Headers, host: str) -> bool:
    """Returns whether one of our pages sent the form, by headers that all current browsers send."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return site is not None
    return origin.partition("://")[2].lower() == host.lower()
