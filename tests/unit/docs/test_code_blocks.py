"""Code in the docs is real: commands parse, configs exist, Python compiles, and what is marked runnable runs."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deploy.cli import build_parser, parse
from deploy.runs.configs import SHIPPED, load_config
from services.config.file import default_config, find_config
from services.config.keys import config_keys
from services.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy/explorer"))

from explorer_run import make_run

ROOT = Path(__file__).parents[3]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
         *sorted((ROOT / "docs").rglob("*.md"))]
HELP = re.findall(r"^  (gagpo .*)$", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE)
"""The examples of `--help`, each in one line."""
FENCE = re.compile(r"^(<!-- runnable -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^\n|\A)((?:    [^\n]*\n|\n)+)", re.MULTILINE)
INLINE = re.compile(r"`(gagpo [a-z][^`]*)`")
BEFORE = re.compile(r"\$|\w+=.*|ray|job|submit|--.*|http\S*|[{.].*")
"""Words that may stand before `gagpo` in a command: a prompt, variables, a job's submission."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each block of code; an indented one has none."""
    text = page.read_text()
    for _, language, block in FENCE.findall(text):
        yield language, block
    for block in INDENTED.findall(FENCE.sub("", text)):
        yield "", textwrap.dedent(block)


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each gagpo command in a shell block."""
    text = re.sub(r"(^|\s)#\s.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    for inner in re.findall(r"\$\(([^)]*)\)", text):
        yield from commands(inner)
    text = re.sub(r"\$\([^)]*\)", "SUBSTITUTED", text).replace("$PWD", "/here")
    text = re.sub(r"\d?>+ *\S+", "", text)
    words = shlex.shlex(text, posix=True, punctuation_chars=";|&\n")
    words.whitespace, words.whitespace_split, words.commenters = " \t\r", True, ""
    line: list[str] = []
    for word in [*words, "\n"]:
        if word.strip(" ;|&\n"):
            line.append(word)
            continue
        before, _, arguments = partition(line, "gagpo")
        if arguments and not arguments[0][0].isdigit() and all(BEFORE.fullmatch(one) for one in before):
            yield arguments
        line = []


def partition(words: list[str], at: str) -> tuple[list[str], list[str], list[str]]:
    """As str.partition does."""
    place = words.index(at) if at in words else len(words)
    return words[:place], words[place:place + 1], words[place + 1:]


SHELL = [(page, arguments) for page in PAGES for language, block in blocks(page)
         if language in ("", "sh", "console") and "gagpo " in block for arguments in commands(block)]
SHELL += [(Path("help.md"), arguments) for line in HELP for arguments in commands(line + "\n")]


@pytest.mark.parametrize(("page", "arguments"), SHELL,
                         ids=[f"{page.stem}: {' '.join(arguments)}"[:90] for page, arguments in SHELL])
def test_a_command_is_one_that_the_command_line_takes(page: Path, arguments: list[str]):
    if {"--help", "--version"} & set(arguments):
        with pytest.raises(SystemExit, match="0"):
            parse(arguments)
        return
    args = parse(arguments)
    overrides, config = getattr(args, "overrides", []), getattr(args, "config", None)
    if config is None:
        default_config(overrides)
    elif config.endswith(".yaml") and not (ROOT / config).is_file():  # the page tells the reader to write it
        load_config("alfworld-tiny", overrides)
    else:
        load_config(config, [one for one in overrides if one != "model.download=true"])


def test_the_pages_hold_commands():
    assert len(SHELL) > 60
    assert len(HELP) > 30
    assert {"train", "explore", "report", "credit", "eval"} <= {arguments[0] for _, arguments in SHELL}


def test_commands_within_sentences_have_their_name_their_options_and_keys_that_exist():
    known = build_parser().commands
    known["credit"].get_default("complete")(known["credit"])
    keys, roles = set(config_keys()), {"rollout", "env"}
    wrong = []
    for page in PAGES:
        for text in INLINE.findall(FENCE.sub("", page.read_text())):
            _, name, *rest = shlex.split(text)
            options = {word.partition("=")[0] for word in rest if word.startswith("--")}
            changed = {word.partition("=")[0] for word in rest if "=" in word and not word.startswith("--")}
            if name not in known or not options <= set(known[name]._option_string_actions) or (
                    not changed <= (roles if name == "scale" else keys)):
                wrong.append((page.name, text))
    assert wrong == []


def test_a_wrong_command_would_be_found():
    block = "$ GAGPO_ENV_TOKEN=x gagpo serve-env --nonsense  # a comment\ngagpo play --tasks a | head\n"
    assert list(commands(block)) == [
        ["serve-env", "--nonsense"], ["play", "--tasks", "a"]]
    with pytest.raises(UserError):
        parse(["serve-env", "--nonsense"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles_and_yaml_names_keys_that_exist(page: Path):
    for language, block in blocks(page):
        if language == "python":
            compile(block, str(page), "exec")
        if language == "yaml":
            tree = yaml.safe_load(block)
            find_config(tree["base"], SHIPPED)
            leaves = {f"{key}.{inner}" if isinstance(value, dict) else key
                      for key, value in tree.items() for inner in (value if isinstance(value, dict) else [""])}
            assert leaves - {"base"} <= set(config_keys()), page


RUNNABLE = [(page, block) for page in PAGES for marked, language, block in FENCE.findall(page.read_text())
            if marked and language == "python"]


@pytest.mark.parametrize(("page", "block"), RUNNABLE, ids=[page.stem for page, _ in RUNNABLE])
def test_code_that_is_marked_runnable_runs_beside_a_run(page: Path, block: str, tmp_path: Path):
    make_run(tmp_path / "runs" / "mine")
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_something_is_marked_runnable():
    assert RUNNABLE


def test_the_page_on_episodes_runs_beside_a_run_whose_last_step_lost_none(tmp_path: Path):
    make_run(tmp_path / "runs" / "mine")
    for file in (tmp_path / "runs/mine/episodes").glob("*.parquet"):
        table = pq.read_table(file)
        won = table.column_names.index("won")
        pq.write_table(table.set_column(won, "won", pa.array([True] * len(table))), file)
    (block,) = (block for page, block in RUNNABLE if page.stem == "parquet")
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          check=False)
    assert (done.stderr, done.stdout) == ("", "0 steps of lost episodes\n")
