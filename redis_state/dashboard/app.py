"""The application: maps addresses to pages."""

from __future__ import annotations

from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redis_state.dashboard.access import LOGIN, Guard, Sessions
from redis_state.dashboard.pages import Pages
from redis_state.dashboard.settings import Settings
from redis_state.dashboard.watch import Watch
from redis_state.live import Reader

_FILES = (("style.css", "text/css"), ("icon.svg", "image/svg+xml"))


def application(reader: Reader, watch: Watch, settings: Settings) -> Guard:
    """Builds the ASGI application of a dashboard; `watch` has to run."""
    sessions = Sessions(settings.token)
    pages = Pages(settings=settings, sessions=sessions, watch=watch, reader=reader)
    app = Starlette(
        routes=[
            Route("/", pages.queries),
            Route("/query/{gen}", pages.query),
            Route("/query/{gen}/key", pages.key_form),
            Route("/query/{gen}/key", pages.key, methods=["POST"]),
            Route(LOGIN, pages.login_form),
            Route(LOGIN, pages.login, methods=["POST"]),
            Route("/logout", pages.logout, methods=["POST"]),
            *(_file(name, media_type) for name, media_type in _FILES),
        ],
        exception_handlers={HTTPException: pages.failed},
    )
    return Guard(app, settings=settings, sessions=sessions)


def _file(name: str, media_type: str) -> Route:
    text = (resources.files("redis_state.dashboard") / "static" / name).read_text("utf-8")

    def answer(_: Request) -> Response:
        # A new release may change the file; until then a browser may cache it for an hour.
        return Response(text, media_type=media_type, headers={"Cache-Control": "max-age=3600"})

    return Route(f"/{name}", answer)
