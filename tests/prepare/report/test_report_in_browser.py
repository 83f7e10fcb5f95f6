"""The report in a real browser: it opens from disk, asks for nothing, complains of nothing, and fits a phone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import get_browser
from tests import building
from tests.building import REVIEWS, built
from tests.support import browser
from tests.support.browser import Tab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(get_browser.missing()), reason=get_browser.missing() or "-"),
]
EVIL = "<script>document.title = 'taken over'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    rows: list[dict[str, Any]] = [
        {"text": EVIL, "label": EVIL},
        {"text": None, "label": "b"},
        *[{"text": "good " * 40, "label": "b"}] * 30,
    ]
    root = built(building.source(folder / "data", train=rows), label_column="label", max_error_rate=0.5)
    assert building.command("report", root, "--output", folder / "report.html").status == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser.opened(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_it_opens_from_disk_without_a_request_or_a_complaint(page: Path, tab: Tab) -> None:
    tab.show(page)
    requests = [e["params"]["request"]["url"] for e in tab.events if e.get("method") == "Network.requestWillBeSent"]
    assert set(requests) == {page.as_uri()}
    complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [event for event in tab.events if event.get("method") in complaints]


def test_a_script_in_a_row_stays_text(page: Path, tab: Tab) -> None:
    tab.show(page)
    assert tab.evaluate("document.title") == "Report of the dataset data"
    assert tab.evaluate("document.querySelectorAll('script, img').length") == 0
    assert EVIL in tab.evaluate("document.querySelector('#labels').innerText")


def test_the_figures_shown_are_the_manifests(tmp_path: Path, tab: Tab) -> None:
    root = built(REVIEWS, label_column="label")
    assert building.command("report", root, "--output", tmp_path / "report.html").status == 0
    tab.show(tmp_path / "report.html")
    shown = tab.evaluate(
        "[...document.querySelectorAll('#overview tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))"
    )
    splits = building.read_manifest(root).splits
    assert [row[0] for row in shown] == list(splits)
    for row, split in zip(shown, splits.values(), strict=True):
        figures = [split.ledger.rows_in, 0, 0, split.num_examples, split.num_tokens, split.ledger.tokens_cut]
        assert [int(cell.replace(",", "")) for cell in row[1:8]] == [*figures, len(split.shards)]


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window(page: Path, tab: Tab, width: int, dark: bool) -> None:
    tab.show(page, width=width, dark=dark)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    (paper,) = {tab.evaluate("getComputedStyle(document.body).backgroundColor")}
    assert (paper == "rgb(255, 255, 255)") is not dark


def test_it_reads_well_without_eyes_and_mouse(page: Path, tab: Tab) -> None:
    tab.show(page)
    assert tab.evaluate("document.documentElement.lang") == "en"
    assert tab.evaluate("['header', 'main', 'nav', 'footer'].every(name => document.querySelector(name))")
    assert tab.evaluate("[...document.querySelectorAll('table')].every(table => table.caption)")
    named = "svg => svg.getAttribute('role') == 'img' && svg.querySelector('title') && svg.querySelector('desc')"
    assert tab.evaluate(f"[...document.querySelectorAll('svg')].every({named})")
    levels = tab.evaluate("[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(later <= before + 1 for before, later in itertools.pairwise(levels))
    targets = tab.evaluate("[...document.querySelectorAll('a')].map(a => document.querySelector(a.hash) != null)")
    assert targets
    assert all(targets)
