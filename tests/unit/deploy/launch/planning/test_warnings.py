"""Settings that are allowed but hardly meant are told before and at the start of a run."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deploy.launch.planning import plan
from deploy.launch.planning.warnings import warnings
from deploy.runs.configs import load_config

ELSEWHERE = "runs_dir=/of/another/machine"
"""So that the room on this machine's disk decides nothing."""
ROOM = "rollout.max_response_tokens=512"
"""Enough for the form of any prompt."""
SELDOM = "checkpoint.every=10"
"""A tiny config keeps each step, which is for models of a few MB."""
PPO = ("learner.credit.estimator=ppo", "learner.loss.ratio=token")


def warned(*overrides: str) -> list[str]:
    """Returns the keys with a warning."""
    return [line.partition("=")[0] for line in warnings(load_config("alfworld-tiny", [SELDOM, *overrides, ELSEWHERE]))]


def test_a_model_from_scratch_on_gpus_is_told():
    """Without model.path, the preset for a published model of 0.5B planned one of 207,872 parameters, silently."""
    line = ("model.path is empty, so a model of 207,872 parameters is made from scratch and trained on GPUs: set "
            "model.path to a pretrained model")
    assert line in warnings(load_config("alfworld-0.5b", [ELSEWHERE]))
    assert line not in warnings(load_config("alfworld-tiny", [ELSEWHERE]))


def test_a_large_model_with_the_learning_rates_of_a_tiny_one_is_told(models: dict[str, Path]):
    config = load_config("alfworld-tiny", [f"model.path={models['1.5b']}", SELDOM, ROOM, ELSEWHERE])
    large = f"{models['1.5b']} has 1,543,714,304 parameters"
    assert warnings(config) == [
        f"learner.lr=0.0004 is for tiny models, and {large}: try learner.lr=1e-06",
        f"sft.lr=0.003 is for tiny models, and {large}: try sft.lr=1e-05",
        f"sft.enabled trains the 1,543,714,304 parameters of {models['1.5b']} on the CPU, where one update of 16 rows "
        "takes minutes: give the learner GPUs (learner.gpus), which train a cold start too"]
    assert "warning       learner.lr=0.0004 is for tiny models" in plan.describe(config)


def test_a_small_published_model_is_told_a_higher_rate_than_a_large_one(models: dict[str, Path]):
    """At 1e-6 nothing of 135 million parameters moved in 30 steps. A critic takes ten times the policy's rate."""
    lines = warnings(load_config("alfworld-tiny", [f"model.path={models['135m']}", *PPO, SELDOM, ROOM, ELSEWHERE]))
    assert [line.partition("try ")[2] for line in lines if " is for tiny models" in line] == [
        "learner.lr=5e-06", "learner.critic.lr=5e-05", "sft.lr=3e-05"]


@pytest.mark.parametrize(("overrides", "warns"), [
    ([], True), (["env.prompt=full", "rollout.max_response_tokens=512"], False), (["sft.enabled=true"], False),
    (["agent.name=my_agent:agent"], False)])
def test_raw_text_for_a_model_that_chats_is_told_unless_a_cold_start_shows_it(
        overrides: list[str], warns: bool, tmp_path: Path, tiny_model):
    given = [f"model.path={tmp_path}", "sft.enabled=false", *overrides, ELSEWHERE]
    tiny_model(tied=True, seed=0).save_pretrained(tmp_path)
    assert warnings(load_config("alfworld-tiny", given)) == []  # a base model
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert warnings(load_config("alfworld-tiny", given)) == ([
        f"env.prompt=memory is raw text without instructions, and {tmp_path} is a model with a chat template that has "
        "never seen it: set env.prompt to one that chats (full, memory-chat, meta), or make a cold start first "
        "(sft.enabled=true)"]
        if warns else [])


def test_no_cold_start_is_proposed_without_a_scripted_player(
        tmp_path: Path, tiny_model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[5] / "examples")
    tiny_model(tied=True, seed=0).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (line,) = warnings(load_config("alfworld-tiny", [
        "env.name=own_game:SPEC", "env.prompt=compact", f"model.path={tmp_path}", "sft.enabled=false",
        ELSEWHERE]))
    assert line.endswith("set env.prompt to one that chats (full), or imitate trajectories first (sft.enabled=true "
                         "sft.file=FILE)")


@pytest.mark.parametrize(("prompt", "sft", "fits"), [
    ("full", False, 100), ("full", True, 0), ("memory", False, 0), ("meta", False, 100)])
def test_answers_too_short_for_the_form_of_the_prompt_are_told(
        prompt: str, sft: bool, fits: int, models: dict[str, Path]):
    """A conversation asks for a thought of a hundred tokens, beside the form itself."""
    text = "<planning>go</planning><action>go to it</action>" if prompt == "meta" else \
        "<think></think><action>go to countertop 1</action>"
    form = len(Tokenizer.from_file(str(models["135m"] / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    given = [f"model.path={models['135m']}", f"env.prompt={prompt}", f"sft.enabled={str(sft).lower()}",
             "learner.lr=1e-5", "sft.lr=1e-5", "learner.gpus=1"]
    assert warned(*given, f"rollout.max_response_tokens={form + fits}") == []
    assert warned(*given, f"rollout.max_response_tokens={form + fits - 1}") == ["rollout.max_response_tokens"]


def test_the_preset_of_an_instruct_model_has_no_warning(models: dict[str, Path]):
    """Its prompt takes a bare number, so there is no form for which an answer could be too short."""
    given = [f"model.path={models['135m']}", ROOM, ELSEWHERE]
    assert warnings(load_config("instruct-cpu", given)) == []


def test_large_checkpoints_at_each_step_are_told_with_the_bytes_that_they_write(models: dict[str, Path]):
    """16 bytes for each of 134,515,008 parameters: moments and weights in float32, and the export in float32."""
    given = [f"model.path={models['135m']}", "sft.enabled=false", "learner.lr=1e-5", ROOM, ELSEWHERE]
    assert warnings(load_config("alfworld-tiny", [*given, "checkpoint.every=1"])) == [
        "each checkpoint writes 2.2 GB, and checkpoint.every=1 writes 65 GB in 30 steps: try checkpoint.every=10"]
    assert warned(*given, "checkpoint.every=5") == warned("checkpoint.every=1") == []


def test_the_cold_start_of_a_large_model_is_told_to_be_slow(models: dict[str, Path]):
    """It runs on the CPU: four minutes of it were one update, after which the model was as before."""
    large = ["learner.lr=1e-6", "sft.lr=1e-5", f"model.path={models['1.5b']}", SELDOM, ROOM, ELSEWHERE]
    (line,) = warnings(load_config("alfworld-tiny", large))
    assert line.startswith("sft.enabled trains the 1,543,714,304 parameters of ")
    assert warned(*large, "sft.enabled=false") == []
    assert warned(*large, "learner.gpus=1") == []  # its ranks imitate too


@pytest.mark.parametrize(("overrides", "keys"), [
    (["sft.enabled=false"], ["learner.lr"]), (["learner.lr=1e-4", "sft.lr=1e-4"], []),
    (["learner.lora.rank=16"], ["sft.lr"]), (["learner.lora.rank=16", "learner.gpus=1"], []),
    (["learner.lr=1e-6", "learner.critic.lr=1e-3"], ["learner.critic.lr", "sft.lr"]),
    (["learner.lora.rank=16", "sft.enabled=false", *PPO], ["learner.critic.lr"]),
    (["learner.lora.rank=16", "sft.enabled=false", "learner.critic.lr=1e-5", *PPO], []),
    (["learner.lr=1e-6", "sft.enabled=false", *PPO], [])])
def test_only_rates_that_are_used_and_high_are_told(overrides: list[str], keys: list[str], models: dict[str, Path]):
    slow = "sft.enabled trains the "
    assert [key for key in warned(f"model.path={models['1.5b']}", ROOM, *overrides) if not key.startswith(slow)] == keys


@pytest.mark.parametrize(("workers", "slots", "more", "suggested"), [
    (1, 128, [], None), (4, 32, [], None), (4, 42, [], None), (4, 43, [], (3, 32)), (4, 128, [], (1, 32)),
    (4, 43, ["learner.staleness=1"], None), (4, 128, ["learner.staleness=1"], (2, 64)),
    (3, 2, ["learner.groups_per_step=2", "learner.group_size=2"], None), (200, 1, [], None)])
def test_workers_that_would_play_nothing_are_told(
        workers: int, slots: int, more: list[str], suggested: tuple[int, int] | None):
    """The first workers take all that they have room for. A step has 128 episodes; three workers cannot share four."""
    config = load_config("alfworld-tiny", [
        f"rollout.workers={workers}", f"rollout.slots={slots}", "learner.groups_per_step=16", "learner.group_size=8",
        *more, ELSEWHERE])
    episodes = 256 if more == ["learner.staleness=1"] else 128
    assert warnings(config) == ([] if suggested is None else [
        f"rollout.slots={slots} lets {suggested[0]} of {workers} workers take all {episodes} episodes that are under "
        f"way at once, and the others play none: try rollout.slots={suggested[1]}"])


@pytest.mark.parametrize(("preset", "ranks", "rows", "share", "suggested"), [
    ("alfworld-32b", 24, 256, 42, 376), ("alfworld-32b", 24, 376, None, None), ("alfworld-32b", 8, 256, None, None),
    ("alfworld-32b", 1, 8, None, None), ("paper/webshop-7b-grpo", 4, 64, 56, 72)])
def test_packs_that_many_ranks_leave_half_empty_are_told(
        preset: str, ranks: int, rows: int, share: int | None, suggested: int | None):
    """24 ranks share 256 rows of 640 tokens: 6,827 each, of 16,384. WebShop's rows have 1,152 tokens: two packs of
    9,216 on each of 4 ranks. A single rank gathers nothing."""
    config = load_config(preset, [f"learner.ranks={ranks}", f"learner.minibatch_rows={rows}", ELSEWHERE])
    assert [line for line in warnings(config) if "minibatch_rows" in line] == ([] if share is None else [
        f"learner.minibatch_rows={rows} over {ranks} ranks fills about {share}% of a pack: try fewer ranks, or "
        f"learner.minibatch_rows={suggested}, with which a step has fewer updates"])


def test_answers_of_a_file_that_the_prompt_cannot_read_are_counted(tmp_path: Path):
    """A template may open the thought, so an answer may lack its first tag. An agent reads its answers itself."""
    file, good = tmp_path / "shown.jsonl", "<think>mug</think><action>look</action>"
    answers = [good, good.removeprefix("<think>"), "Thought: mug\nAction: look"]
    file.write_text(json.dumps({"steps": [{"prompt": "Now: a mug", "response": answer} for answer in answers]}))
    settings = ["sft.enabled=true", f"sft.file={file}"]
    assert warnings(load_config("alfworld-tiny", settings)) == [
        f"env.prompt=memory finds 1 of 3 answers in {file} malformed, such as 'Thought: mug\\nAction: look': a policy "
        "that imitates them takes invalid turns"]
    assert warned(*settings, "agent.name=my_agent:agent") == []
    assert warned("sft.enabled=false", f"sft.file={file}") == []


def test_a_tiny_model_keeps_its_rates(tmp_path: Path, tiny_model):
    tiny_model(tied=True, seed=0).save_pretrained(tmp_path)
    assert warned() == warned(f"model.path={tmp_path}") == []
