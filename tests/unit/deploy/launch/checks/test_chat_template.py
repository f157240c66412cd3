"""A chat template that fails is refused before anything starts, from the files of the model alone."""

import json
import re
from pathlib import Path

import pytest
from third_party import TOKENIZERS

from deploy.cli import main
from deploy.launch.checks.chat_template import check_files, check_template, template_of
from deploy.runs.configs import load_config
from learner.checkpoints.checkpoint import EXPORT, Checkpoints, Position
from learner.cold_start.scratch_model import train_tokenizer
from services.config.file import dump_config
from services.config.tree import ModelSection
from services.errors import UserError

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}<|assistant|>"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML


def check(folder: Path, *overrides: str) -> None:
    check_template(load_config("alfworld-tiny", ["env.prompt=full", f"model.path={folder}", *overrides]))


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        check(folder, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose template refuses system messages."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(
        {"chat_template": REFUSING, "eos_token": {"content": "<|end|>"}}))
    return tmp_path


def test_a_template_that_works_passes(folder: Path):
    check(folder)
    check(folder, "env.prompt=compact", "model.chat_template=absent.jinja")  # which nobody reads


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_templates_of_published_models_pass(name: str):
    folder = TOKENIZERS[name]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    check_files(template_of(folder, settings), settings, ModelSection(path=folder), folder)


@pytest.mark.attack
@pytest.mark.parametrize(("template", "reason"), [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "has not written one message"),
    ("{{ 9 ** (9 ** 9) }}", "has not written one message"),
    ("{{ 'a' * 10 ** 10 }}", r"refuses a user's message \(MemoryError\)"),
    ("{{ 1 / 0 }}", r"refuses a user's message \(division by zero\)"),
])
def test_a_template_that_takes_all_time_or_memory_is_one_line(folder: Path, template: str, reason: str):
    """It hung `--dry-run` for ever, or ended it with a traceback."""
    (folder / "chat_template.jinja").write_text(template)
    assert re.search(reason, refusal(folder))


@pytest.fixture
def endless_run(tmp_path: Path) -> Path:
    """A run with a checkpoint whose template takes for ever."""
    dump_config(load_config("alfworld-tiny", ["env.prompt=full"]), tmp_path / "run/config.yaml")
    checkpoints = Checkpoints(tmp_path / "run/checkpoints", keep=1)
    model = checkpoints.draft(1) / EXPORT
    train_tokenizer(["you are in a room"]).save_pretrained(model)
    (model / "config.json").write_text("{}")
    (model / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    checkpoints.commit(Position(step=1, incarnation=1, next_group=1, trained=1))
    (tmp_path / "run/run.json").write_text("{}")
    return tmp_path / "run"


@pytest.mark.attack
@pytest.mark.parametrize("command", ["export {run} {run}/out", "play alfworld-gen/valid/pick-0000 --agent {run}",
                                     "play alfworld-gen/valid/pick-0000 --agent {run} --prompts 1"])
def test_every_command_that_reads_a_template_is_bounded(
        command: str, endless_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(command.format(run=endless_run).split()) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: the chat template of .* has not written one message after 3 s; .*\n", said), said


def test_a_template_without_the_tokenizers_settings_is_checked(folder: Path):
    """transformers reads the file alone."""
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    assert "division by zero" in refusal(folder)


def test_the_check_imports_nothing_from_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """It may be a run of others, which is only looked at."""
    (folder / "jinja2.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(folder)
    check(folder)
    assert not (folder / "imported").exists()


SLOW = "{% set m = messages * 20 %}{% for a in m %}{% for b in m %}{% for c in m %}{% endfor %}{% endfor %}{% endfor %}"
"""Takes no time for a short conversation."""


@pytest.mark.attack
@pytest.mark.parametrize(("template", "reason", "given"), [
    (SLOW, "has not written a conversation of 119 messages and 480 tokens", ["agent.name=operator:setitem"]),
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "has not written one message",
     ["env.prompt=compact"]),
    ("{{ 'a' * messages[-1].content | length ** 4 }}", "takes more than 2.0 GiB for a conversation of 1 message", []),
])
def test_a_template_that_takes_too_much_for_long_conversations_alone_or_for_the_end_of_answers_is_one_line(
        folder: Path, template: str, reason: str, given: list[str]):
    """Prompts of raw text need no template, and the sampler asks it for the end of answers."""
    (folder / "chat_template.jinja").write_text(template + CHATML)
    assert reason in refusal(folder, "agent.max_calls=60", *given)


@pytest.mark.attack
@pytest.mark.parametrize("beside", [True, False])
def test_the_template_for_tools_is_bounded_where_an_agent_plays(folder: Path, beside: bool):
    """transformers takes it for conversations with tools. It was never read before one came."""
    if beside:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(SLOW + CHATML)
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [
            {"name": "default", "template": CHATML}, {"name": "tool_use", "template": SLOW + CHATML}]}))
    check(folder)
    assert "has not written a conversation of 119 messages and 480 tokens, with a tool after 3 s" in refusal(
        folder, "agent.max_calls=60", "agent.name=operator:setitem")


def test_a_template_that_refuses_the_system_prompt_is_refused(folder: Path):
    assert refusal(folder, "model.system_prompt=Be brief.") == (
        f"the chat template of {folder} refuses a system prompt (no system); "
        "look at the template, model.system_prompt and model.chat_template_kwargs")


def test_a_template_that_does_not_compile_is_refused_by_its_line(folder: Path):
    """Also where an agent plays, whatever the prompt is, and for a model that is made here."""
    (folder / "chat_template.jinja").write_text("{# ours #}\n{% for m in messages %}")
    assert "refuses a user's message (line 2 is no Jinja: Unexpected end of template." in refusal(folder)
    assert "line 2 is no Jinja" in refusal(folder, "env.prompt=compact", "agent.name=operator:setitem")
    config = load_config("alfworld-tiny", [
        "env.prompt=full", f"model.chat_template={folder / 'chat_template.jinja'}"])
    with pytest.raises(UserError, match="line 2 is no Jinja"):
        check_template(config)


def test_a_file_that_is_no_template_is_refused(folder: Path):
    """Any text is a template of Jinja's: the model would read it instead of its prompts."""
    (folder / "notes.txt").write_text("Answer in one word.")
    assert refusal(folder, f"model.chat_template={folder / 'notes.txt'}").startswith(
        f"the chat template of {folder} leaves out the user's message; set model.chat_template")


def test_a_model_without_a_template_is_refused(folder: Path):
    (folder / "tokenizer_config.json").write_text("{}")
    assert refusal(folder).startswith(f"the tokenizer in {folder} has no chat template; set model.chat_template to")
    (folder / "own.jinja").write_text(CHATML)
    check(folder, f"model.chat_template={folder / 'own.jinja'}")
