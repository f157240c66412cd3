"""`gagpo play --prompts` shows what a model will read, with and without a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.commands.play import ShownPrompt, _print_prompt
from learner.cold_start.scratch_model import train_tokenizer
from services.config.tree import Config

TASK = "alfworld-gen/valid/pick-0000"
OTHER = "search-gen/valid/000000"


@pytest.fixture(autouse=True)
def generated_games(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def shown(capsys, *arguments: str) -> dict:
    assert main(["play", TASK, "--prompts", "2", "--config", "alfworld-tiny", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_a_model_there_is_text_and_what_ends_an_answer(capsys):
    found = shown(capsys)
    first, second = found["prompts"]
    assert (first["turn"], first["tokens"], found["prompt"]) == (1, None, "memory")
    assert first["action"] in second["text"], "the second prompt tells of the first action"
    assert (second["action"], found["stops"]) == (None, ["</action>"])


def test_a_task_of_another_environment_than_the_configs_is_shown_by_its_own(capsys):
    assert main(["play", OTHER, "--prompts", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["prompts"]
    assert first["action"] in second["text"]


def test_a_tokenizer_shows_the_very_tokens(capsys, tmp_path: Path):
    texts = [prompt["text"] for prompt in shown(capsys, "--prompts", "3")["prompts"]]
    tokenizer = train_tokenizer([*texts, "<think>find mug</think><action>take mug 2</action>"] * 3)
    tokenizer.save_pretrained(tmp_path)
    found = shown(capsys, f"model.path={tmp_path}", "--prompts", "1")
    (prompt,) = found["prompts"]
    assert prompt["ids"] == tokenizer(prompt["text"], add_special_tokens=False)["input_ids"]
    assert "".join(prompt["tokens"]) == prompt["text"] == texts[0]
    assert "</action>" in found["stops"]


def test_people_see_prompt_tokens_and_limits(capsys, tmp_path: Path):
    assert main(["play", TASK, "--prompts", "2", "--config", "alfworld-tiny"]) == 0
    said = capsys.readouterr().out
    assert "--- turn 1, prompt memory: " in said
    assert "ends after '</action>', or after 24 tokens" in said
    assert "give --agent RUN, or model.path=FOLDER" in said


def test_no_escape_sequence_of_a_prompt_reaches_the_terminal(capsys):
    shown = ShownPrompt(turn=1, text="look\n\x1b]0;title\x07", tokens=["look", "\x1b"], ids=[1, 2], action="\x1b[2J")
    _print_prompt(shown, Config(name="r", steps=1))
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "look\n\ufffd]0;title\ufffd\n" in said
    assert "look|\ufffd\n" in said
    assert "--- action: \ufffd[2J" in said


@pytest.mark.parametrize(("arguments", "said"), [
    (["alfworld-gen/valid/nothing"], "there is no task"),
    ([TASK, "--prompts", "0"], "argument --prompts: it must be at least 1, not 0"),
    ([TASK, "model.path=/nowhere"], "there is no folder /nowhere; give a Hugging Face folder"),
    ([TASK, "model.path=/"], "/ holds no tokenizer; give a Hugging Face folder")])
def test_a_mistake_is_one_line(capsys, arguments: list[str], said: str):
    assert main(["play", "--prompts", "2", *arguments]) == 2
    assert said in capsys.readouterr().err
