"""The documentation site builds strictly without a network, and contains everything it should show of the code.

Every internal link leads to an existing page and anchor. No page requests a script, style or font from another host.
"""

import ast
import html.parser
import importlib
import inspect
import os
import re
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

import tfrecord_io
from pipelines.cli import commands as prep_tfrecords
from pipelines.train import cli as train_tpu
from pipelines.train import errors as training_errors
from tests.building import REPOSITORY
from tests.support import pages, processes, sources
from tfrecord_io import errors

# Where nothing answers: a build that asks for anything fails.
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
# Attributes that make a browser fetch something on page load.
FETCHED = {("link", "href"), ("object", "data"), *((tag, "src") for tag in ("script", "img", "iframe", "source"))}


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the references of a tag. Links of kind `canonical` and the like fetch nothing."""
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag != "link" or attributes.get("rel") in ("stylesheet", "preload", "icon", "preconnect", "modulepreload"):
            self.fetched += [attributes[name] for of, name in FETCHED if of == tag and name in attributes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, made as `mkdocs build --strict` makes it, without a network."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    variables = {**processes.environment(), **NO_NETWORK, "NO_PROXY": "", "NO_MKDOCS_2_WARNING": "1"}
    ended = processes.run(words, cwd=REPOSITORY, env=variables)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> Mapping[str, Page]:
    return {str(path.relative_to(site)): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_inside_leads_somewhere(site: Path, built: Mapping[str, Page]) -> None:
    broken = []
    for name, page in built.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), parts.path)) if parts.path else name
            anchor = urllib.parse.unquote(parts.fragment)
            if not (site / target).exists() or (anchor and target in built and anchor not in built[target].anchors):
                broken.append((name, link))
    assert broken == []


@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(site: Path, built: Mapping[str, Page]) -> None:
    assert [(name, address) for name, page in built.items() for address in page.fetched if "//" in address] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []
    # The theme's script fetches Mermaid for such a block, and a repository's stars for a link to it.
    assert not [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")]
    assert "repo_url" not in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"), [("prep-tfrecords", prep_tfrecords.main), ("train-tpu", train_tpu.main)], ids=["prep", "train"]
)
def test_the_command_line_page_has_every_option(site: Path, page: str, command: click.Command) -> None:
    text = (site / "reference" / "cli" / f"{page}.html").read_text(encoding="utf-8")
    inner = list(command.commands.values()) if isinstance(command, click.Group) else []
    every = [parameter for owner in [command, *inner] for parameter in owner.params]
    options = {name for parameter in every for name in parameter.opts if name.startswith("--")}
    assert len(options) > 30
    assert [name for name in options if name not in text] == []


@pytest.mark.slow
def test_the_api_pages_have_every_public_name(built: Mapping[str, Page]) -> None:
    anchors = set().union(*(page.anchors for page in built.values()))
    for module in tfrecord_io._MODULES:
        loaded = importlib.import_module(f"tfrecord_io.{module}")
        public = [getattr(loaded, name) for name in loaded.__all__]
        documented = {value.__name__: value for value in public if inspect.isroutine(value) or inspect.isclass(value)}
        ends = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith(f"tfrecord_io.{module}.")}
        assert documented
        # Names that a module only re-exports appear on their own module's page.
        assert [n for n, item in documented.items() if n not in ends and f"{item.__module__}.{n}" not in anchors] == []


def test_every_document_is_in_the_navigation() -> None:
    documents = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md")}
    assert set(pages.site_pages()) == documents


def test_the_errors_page_names_every_error() -> None:
    page = (REPOSITORY / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+Error)` \|", page, re.M))
    modules = (errors, training_errors)
    classes = {name for module in modules for name in vars(module) if name.endswith("Error")}
    assert named == classes - {"PrepError"}


def strings_of_the_code() -> str:
    """Return every text constant of the product, one per line, with the parts of f-strings in order."""
    lines = []
    for package in ("pipelines", "tfrecord_io"):
        for module in sources.modules(package).values():
            for node in ast.walk(module):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                    lines.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    lines.append(re.sub(r"%[.\d]*[rsdf]", "…", node.value).replace("%%", "%"))
    return "\n".join(lines)


def test_troubleshooting_quotes_messages_that_exist() -> None:
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| (`{1,2})(.+?)\1 \|", page, re.M)
    messages = [message for _, message in quoted if message != "No space left on device"]  # the system's
    assert len(messages) > 25
    code = strings_of_the_code()
    unknown = [m for m in messages if any(part.strip() not in code for part in m.split("…"))]
    assert unknown == []


@pytest.mark.parametrize("page", [*pages.pages(), "CHANGELOG.md", "SECURITY.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    folders = "docs|examples|pipelines|requirements|scripts|tests|tfrecord_io"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    assert len(links) > 10
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
