"""`make docs` builds a site in which every link leads somewhere, and which loads nothing from the network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[3]
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}


class Page(HTMLParser):
    """The links, the ids and the things that a page loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.paragraphs: list[str] = []
        self._within = False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.classes |= set(values.get("class", "").split())
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        for name, value in values.items():
            if (tag, name) in LOADED and values.get("rel") != "canonical":
                self.loads.append(value)
            elif name == "href":
                self.links.append(value)
        if tag == "p":
            self._within = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = self._within and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._within:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Proxies that answer nobody stand for a machine without a network."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT,
                          env=os.environ | nowhere, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_each_page_of_the_docs_is_there(site: Path, pages: dict[Path, Page]):
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(site) for path in pages} == sources


def test_each_link_and_each_anchor_leads_somewhere(pages: dict[Path, Page]):
    lost = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                lost.append((path.name, link))
    assert lost == []


def test_nothing_is_loaded_from_the_network(site: Path, pages: dict[Path, Page]):
    assert [(path.name, one) for path, page in pages.items() for one in page.loads if urlsplit(one).netloc] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import) *[\"']?https?:", styles) == []
    # The theme would fetch a renderer for such a block.
    assert [path.name for path, page in pages.items() if "mermaid" in page.classes] == []


def test_no_list_or_table_is_left_in_a_paragraph(pages: dict[Path, Page]):
    """Markdown wants an empty line before a list; without one, the site shows its marks as text."""
    marks = re.compile(r"^(?:- |\d+\. |\| )", re.MULTILINE)
    assert [(path.name, text[:80]) for path, page in pages.items() for text in page.paragraphs
            if marks.search(text)] == []
