"""The dashboard in a real browser: by keyboard, in both colour schemes, on a small screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from redis_state import connect
from tests.contract.planting import GEN, Planted
from tests.support.browser import NoBrowserError, Trace, running_browser
from tests.support.dashboard import Dashboard, serving, write_query
from tests.support.redis_server import RedisServer

Scheme = Literal["light", "dark"]
PARTITIONS = 20
# For each text that can be seen: how much its colour differs from what lies behind it (WCAG 2.2).
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(".hidden, .skip, svg")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) {
      behind.unshift(getComputedStyle(at).backgroundColor);
    }
    const [a, b] = [paint([...behind, getComputedStyle(element).color]), paint(behind)].map(light);
    found.push([element.textContent.trim().slice(0, 40),
                (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
  }
  return found;
}"""


@dataclass(frozen=True)
class Scene:
    """A dashboard with a query of Spark's layout and one with many partitions."""

    browser: Browser
    board: Dashboard
    orders: str

    @property
    def pages(self) -> tuple[str, ...]:
        return ("/", f"/query/{self.orders}", f"/query/{GEN}/key", "/nothing")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with running_browser() as started:
            yield started
    except NoBrowserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def scene(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    log = tmp_path_factory.mktemp("dashboard") / "log"
    with RedisServer() as server:
        planted = Planted(server.client())
        planted.register()
        planted.commit(1, [({"carrier": "UA"}, {"count": 2, "total": 1.5})])
        write_query(
            server.url,
            "orders",
            partitions=PARTITIONS,
            rows=lambda partition, _: dict.fromkeys(range(1 + partition * partition), "row"),
        )
        with connect(server.url) as reader:
            gen = reader.query("orders").info.gen
        with serving(server.url, "orders", ["worker-1"]), Dashboard(server.url, log=log) as board:
            yield Scene(browser, board, gen)


def opened(
    scene: Scene, path: str, *, scheme: Scheme = "light", width: int = 1200
) -> tuple[Page, Trace]:
    context = scene.browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    page = context.new_page()
    trace = Trace(page)
    page.goto(scene.board.origin + path)
    return page, trace


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def tab_to(page: Page, text: str) -> None:
    """Presses the tab key until the element with this text has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page) == text:
            return
    raise AssertionError(f"the tab key does not reach '{text}'")


def test_pages_load_without_foreign_requests_or_errors(scene: Scene) -> None:
    for path in scene.pages[:-1]:
        page, trace = opened(scene, path)
        assert trace.complaints == []
        assert {url.removeprefix(scene.board.origin) for url in trace.asked} >= {path, "/style.css"}
        assert all(url.startswith(f"{scene.board.origin}/") for url in trace.asked)
        page.context.close()


def test_key_is_reached_from_the_list_by_keyboard(scene: Scene) -> None:
    page, trace = opened(scene, "/")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    tab_to(page, "Rows")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{scene.board.origin}/?sort=-rows")
    expect(page.locator("tbody th").first).to_have_text("orders")
    tab_to(page, "flights")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("flights")
    tab_to(page, "Look up a key")
    page.keyboard.press("Enter")
    page.get_by_label("carrier string").focus()
    page.keyboard.type("UA")
    page.keyboard.press("Enter")
    expect(page.locator("pre")).to_have_text('{\n  "count": 2,\n  "total": 1.5\n}')
    assert "UA" not in page.url
    assert trace.complaints == []
    page.context.close()


def test_the_table_of_partitions_opens_by_keyboard(scene: Scene) -> None:
    page, _ = opened(scene, f"/query/{scene.orders}")
    every = page.get_by_role("table", name="Partitions of operator 0, store default")
    expect(every).to_be_hidden()
    tab_to(page, "Every partition")
    page.keyboard.press("Enter")
    expect(every).to_be_visible()
    expect(every.get_by_role("row")).to_have_count(PARTITIONS + 1)
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_heat_map_shows_the_largest_partition(scene: Scene, scheme: Scheme) -> None:
    page, _ = opened(scene, f"/query/{scene.orders}", scheme=scheme)
    rows = page.get_by_role("table", name="Rows by partition")
    expect(rows).to_be_visible()
    cells = rows.locator("tbody td")
    expect(cells).to_have_count(PARTITIONS)
    colours = cells.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == 8
    assert colours.index(colours[-1]) == PARTITIONS - 2  # 325 and 362 rows have the last colour
    expect(cells.last).to_have_text("362")
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(scene: Scene, scheme: Scheme) -> None:
    grounds = set()
    for path in scene.pages:
        page, _ = opened(scene, path, scheme=scheme)
        found = page.evaluate(CONTRASTS)
        assert len(found) > 4
        assert [one for one in found if one[1] < 4.5] == []
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.context.close()
    assert grounds == {"rgb(16, 21, 29)" if scheme == "dark" else "rgb(246, 247, 249)"}


def test_small_screen_needs_no_horizontal_scroll(scene: Scene) -> None:
    for path in scene.pages:
        page, _ = opened(scene, path, width=360)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.context.close()


def test_charts_are_drawn(scene: Scene) -> None:
    page, trace = opened(scene, f"/query/{scene.orders}?refresh=5")
    lines = page.get_by_role("img")
    expect(lines).to_have_count(4, timeout=30_000)  # the page loads itself again
    expect(lines.first).to_be_visible()
    expect(lines.first).to_have_accessible_name("Rows: now 2,490, from 2,490 to 2,490")
    assert trace.complaints == []
    page.context.close()


def test_login_and_logout_work(
    browser: Browser, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("token")
    (folder / "token").write_text("0123456789abcdef0123456789")
    arguments = ("--token-file", str(folder / "token"))
    with Dashboard(redis_server.url, *arguments, log=folder / "log") as board:
        page = browser.new_page()
        trace = Trace(page)
        page.goto(f"{board.origin}/query/x")
        expect(page).to_have_url(f"{board.origin}/login")
        page.keyboard.type("0123456789abcdef0123456789")  # the field has the focus
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Queries")
        assert trace.complaints == []
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("h1")).to_have_text("Log in")
        page.goto(board.origin)
        expect(page).to_have_url(f"{board.origin}/login")
        page.close()
