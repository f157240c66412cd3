"""Names in the docs exist: config keys, files, modules, targets of make, variables, metrics, links and messages."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from envservice.alfworld.generator import GENERATED_SPLITS
from envservice.spec import EnvironmentSpec
from learner.credit.registry import ESTIMATORS, option_tables
from services.config.file import default_config, flatten
from services.config.keys import config_keys
from services.telemetry.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]
AT_THE_ROOT = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")]
PAGES = [path for path in AT_THE_ROOT if path.name != "CHANGELOG.md"] + sorted((ROOT / "docs").rglob("*.md"))
"""The changelog also names what is no more."""
LAB = sorted((ROOT / "lab").rglob("*.md"))
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)(?:=.*)?")
FILES = re.compile(r".*\.(?:jsonl?|conf|md|py|yaml|html)")
PLANNED = {("gpu-status.md", "learner.context_ranks")}
"""Keys that a page proposes."""
GIVEN = ("env.step", "env.tools", "env.call")
"""Names of the object `env` that an agent is called with (rollout/agents/world.py)."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\.\.\.|\bruns/x\b|\b[A-Z]+\b|=|\d+|\ba\.b\b")


def spans(page: Path) -> Iterator[str]:
    """Yields the code within sentences and tables."""
    yield from CODE.findall(FENCE.sub("", page.read_text()))


@cache
def tracked() -> frozenset[str]:
    """Returns all files and folders of the repository."""
    done = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                          capture_output=True, text=True, timeout=30, check=True)
    files = done.stdout.splitlines()
    return frozenset(files) | {str(folder) for file in files for folder in Path(file).parents}


@cache
def sources() -> str:
    """Returns the text of all code, with literals that span lines joined and each {...} left out.

    Of the tests it has only what all of them share, since a test may name what there is not.
    """
    code = [ROOT / name for name in tracked()
            if name.endswith((".py", ".lua", ".sh")) or name.startswith("scripts/")
            if not name.startswith("tests/") or name == "tests/conftest.py"]
    text = "\n".join(file.read_text() for file in code if file.is_file())
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    for _ in range(2):
        text = re.sub(r"\{[^{}\n]*\}", "\0", text)
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_config_keys_within_sentences_exist(page: Path):
    options = {name for table in option_tables() for name in table.model.model_fields}
    keys = {*config_keys(), *(f"learner.credit.{name}" for name in options)}
    sections = {key.rpartition(".")[0] for key in keys if "." in key}
    tops = {section.partition(".")[0] for section in sections}
    named = {found[1] for span in spans(page) if not span.startswith(("python ", "from ", "import "))
             for word in span.split() if (found := WORD.fullmatch(word)) and not FILES.fullmatch(found[1])}
    wrong = {key for key in named if key.partition(".")[0] in tops and key not in keys | sections}
    assert wrong - set(GIVEN) - {key for where, key in PLANNED if where == page.name} == set()


@pytest.mark.parametrize("page", [*PAGES, *LAB], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_modules_and_make_targets_exist(page: Path):
    text = re.sub(r"--out \S+", "", page.read_text())
    tops = {name.partition("/")[0] for name in tracked() if "/" in name and not name.startswith(".")}
    paths = re.findall(rf"(?<![\w./:-])((?:{'|'.join(sorted(tops))})/[\w./*{{}}<>-]+)", text)
    lost = {path for path in paths if path.rstrip("./") not in tracked() and not re.search(r"[*{<]|/[A-Z]+$", path)}
    assert lost == set()
    modules = {name for name in re.findall(r"\bpython -m ([\w.]+)", text) if name.partition(".")[0] in tops}
    places = {name: name.replace(".", "/") for name in modules}
    assert [name for name, place in places.items() if not {f"{place}.py", f"{place}/__main__.py"} & tracked()] == []
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|    )make (\w+)", text, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_variables_and_metrics_exist(page: Path):
    text = page.read_text()
    assert [name for name in set(re.findall(r"\bGAGPO_[A-Z_]+\b", text)) if name not in sources()] == []
    metrics = set(re.findall(rf"\b(gagpo_(?:{'|'.join({name.split('_')[1] for name in CATALOGUE})})_[a-z_]+)", text))
    assert metrics - {name.removesuffix("_total") for name in CATALOGUE} - set(CATALOGUE) == set()


@pytest.mark.parametrize("page", [*AT_THE_ROOT, *LAB], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_pages_outside_the_site_lead_somewhere(page: Path):
    """The site's own links are followed in test_site.py."""
    lost = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link or (target.is_file() and not anchor):
            continue
        headings = HEADING.findall(FENCE.sub("", target.read_text())) if target.is_file() else []
        if anchor not in {slugify(re.sub(r"[`*]|\]\([^)]*\)", "", heading), "-") for heading in headings}:
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_number_in_brackets_after_a_config_key_is_its_default(page: Path):
    defaults = flatten(default_config())
    said = re.findall(r"`([a-z_.]+)` \((\d[\d.,]*)\b", page.read_text())
    assert [(key, number) for key, number in said if key in defaults
            and float(number.replace(",", "")) != defaults[key]] == []


def test_every_estimator_and_every_shipped_config_has_its_row():
    rows = (ROOT / "docs/tasks/estimator.md").read_text() + (ROOT / "docs/tasks/config.md").read_text()
    shipped = [file.stem for file in (ROOT / "deploy/configs").glob("*.yaml")]
    assert [name for name in (*ESTIMATORS, *shipped) if f"`{name}`" not in rows] == []


def test_every_preset_of_a_paper_is_in_the_row_of_presets():
    row = (ROOT / "docs/tasks/config.md").read_text().partition("| `paper/")[2].partition("|")[0]
    named = {Path(name).name for spelled in re.findall(r"[\w.{},/-]{9,}", row) for name in expanded(spelled)}
    assert named == {file.stem for file in (ROOT / "deploy/configs/paper").glob("*.yaml")}


def expanded(text: str) -> list[str]:
    """Returns what a shell makes of braces."""
    if not (found := re.search(r"{(.*?)}", text)):
        return [text]
    return [name for choice in found[1].split(",") for name in expanded(text.replace(found[0], choice, 1))]


def test_every_script_of_the_store_has_its_fence():
    table = (ROOT / "docs/architecture.md").read_text().partition("| scripts | fence |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])]
    scripts = [file.stem for file in (ROOT / "services/store").rglob("*.lua") if file.stem != "prelude"]
    assert sorted(named) == sorted(scripts)


def test_every_field_of_an_environment_has_its_row():
    page = (ROOT / "docs/tasks/own-environment.md").read_text()
    table = page.partition("| field | what it is |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {
        field.name for field in dataclasses.fields(EnvironmentSpec)}


def test_messages_that_are_explained_are_messages_of_the_code():
    rows = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs/operate/messages.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    pieces = [piece.strip() for row in rows for message in CODE.findall(row)
              for piece in PLACEHOLDER.split(message.removeprefix("warning: ")) if len(piece.strip()) > 8]
    assert [piece for piece in pieces if piece not in sources()] == []


def test_the_example_of_the_http_api_shows_the_number_of_generated_games():
    text = (ROOT / "docs" / "environments.md").read_text()
    shown = re.findall(r'"name":"alfworld-gen".*"splits":{"train":{"tasks":(\d+),', text)
    assert shown == [str(GENERATED_SPLITS["train"])]
