"""TRL's trainer with step-level credit: real training of a tiny model, whose answers are given where a test needs them.

It asks the installed package, with accelerate and datasets: scripts/third-party.txt has them. `$GAGPO_MODEL` is a
folder with a pretrained model, which answers by itself.
"""

import json
import os
import sys
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from third_party import TEMPLATES

sys.path += [str(TEMPLATES.parents[1])] if TEMPLATES else []  # last: torch and transformers stay those of .venv
pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed (scripts/setup --test)",
                    exc_type=ImportError)

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

import gagpo
from deploy.cli import main
from deploy.explorer.runs import open_runs
from gagpo.integrations.trl import GagpoTrainer, token_advantages

TEMPLATE = next(Path(sys.modules["trl"].__file__).parent.glob("chat_templates/qwen2_5.jinja")).read_text()
GO = '<tool_call>\n{{"name": "go", "arguments": {{"way": "{}"}}}}\n</tool_call>'
CREDIT = {"gamma": 1.0, "lam": 0.0, "normalize": "none"}
PLAYS = [["east", "east"], ["east", "west"], ["west"], ["east"]]
"""Four episodes of Rooms; only the first one ends in room 2. Each ends with the answer `done`, a step of its own."""


class Rooms:
    """An environment of TRL, won in room 2."""

    def reset(self, **row: Any) -> str:
        self.room = 0
        return "You are in room 0."

    def go(self, way: str) -> str:
        """Go to the next room.

        Args:
            way: east or west
        """
        self.room += 1 if way == "east" else -1
        return f"You are in room {self.room}."

    def get_reward(self) -> float:
        return 10.0 * (self.room == 2)


class Numbered(Rooms):
    """Rooms that says its state: by the parity of the room."""

    @property
    def credit_state(self) -> str:
        return "even" if self.room % 2 == 0 else "odd"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token per byte, and Qwen's marks, so that TRL knows the chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   additional_special_tokens=["<|im_start|>"], padding_side="left")
    fast.chat_template = TEMPLATE
    return fast


def tiny_model() -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=260, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096))


def trainer(folder: Path, *, credit: dict[str, Any] | None = None, config: dict[str, Any] | None = None,
            **named: Any) -> GagpoTrainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1,
        "max_completion_length": 1024, "report_to": [], "use_cpu": True, "save_strategy": "no", "bf16": False,
        "gradient_checkpointing": False, "logging_steps": 1, "disable_tqdm": True, "learning_rate": 1e-2}
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Reach room 2. "}]] * 4})
    given = {"model": tiny_model(), "processing_class": tokenizer()} | named
    return GagpoTrainer(args=GRPOConfig(**settings | (config or {})), train_dataset=data, credit=credit, **given)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture
def given_answers(monkeypatch: pytest.MonkeyPatch):
    """The model's answers are those of PLAYS; TRL calls the tools, masks their results and trains."""
    turns = cycle(range(1 + max(map(len, PLAYS))))

    def answers(self: GRPOTrainer, prompt_ids: list[list[int]], *_: Any, **__: Any):
        turn = next(turns)
        playing = [play for play in PLAYS if turn <= len(play)]
        assert len(prompt_ids) == len(playing)
        texts = [GO.format(play[turn]) if turn < len(play) else "done" for play in playing]
        return [self._tokenizer.encode(f"{text}<|im_end|>") for text in texts], None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", answers)


def batch_of(trained: GagpoTrainer, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Trains, and returns the batch as TRL's loss got it, in the order of PLAYS."""
    batches: list[dict[str, torch.Tensor]] = []
    score = GagpoTrainer._generate_and_score_completions
    monkeypatch.setattr(GagpoTrainer, "_generate_and_score_completions",
                        lambda self, inputs: batches.append(score(self, inputs)) or dict(batches[-1]))
    trained.train()
    return batches[-1]


def of_steps(batch: dict[str, torch.Tensor]) -> list[list[float]]:
    """Returns the distinct advantage of each step, and checks that all tokens of a step have it and others have 0."""
    rows = []
    assert batch["advantages"].shape == batch["completion_ids"].shape
    for advantages, mask, there in zip(batch["advantages"], batch["tool_mask"], batch["completion_mask"], strict=True):
        sampled = (mask * there).bool()
        assert not advantages[~sampled].any()
        starts = [i for i in range(len(sampled)) if sampled[i] and (i == 0 or not sampled[i - 1])]
        ends = [i for i in range(len(sampled)) if sampled[i] and (i + 1 == len(sampled) or not sampled[i + 1])]
        for start, end in zip(starts, ends, strict=True):
            assert len(advantages[start:end + 1].unique()) == 1
        rows.append([round(float(advantages[start]), 4) for start in starts])
    return rows


def test_the_tokens_of_a_step_have_its_advantage(
        tmp_path: Path, given_answers: None, monkeypatch: pytest.MonkeyPatch):
    """γ=1, λ=0, no normalising. Room 0 at the start: returns 10, 0, 0, 0, so V̄ 2.5. Room 1 after a step: 10, 0, 0, so
    V̄ 10/3. The states of the last answers of the first three episodes (room 2, room 0, room -1) are alone: V̄ is the
    return. δ = r + V̄' - V̄ is at the start 10/3-2.5 for `east` and 0-2.5 for `west`; in room 1 it is 10-10/3, then
    0-10/3, and 0-10/3 for the fourth episode's answer."""
    trained = trainer(tmp_path, environment_factory=Rooms, credit=CREDIT)
    before = trained.model.model.embed_tokens.weight.detach().clone()
    batch = batch_of(trained, monkeypatch)
    assert of_steps(batch) == [
        [0.8333, 6.6667, 0.0], [0.8333, -3.3333, 0.0], [-2.5, 0.0], [0.8333, -3.3333]]
    assert not torch.equal(before, trained.model.model.embed_tokens.weight)


def logged(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns the steps of the episodes of the first group in the log."""
    group = json.loads((folder / "gagpo/groups/step-00000001.jsonl").read_text())
    return [episode["steps"] for episode in group["episodes"]]


def test_the_environments_state_takes_the_place_of_the_text(
        tmp_path: Path, given_answers: None, monkeypatch: pytest.MonkeyPatch):
    """Even rooms have the returns 10, 10, 0, 0, 0, 0, so V̄ 10/3, and odd ones 10, 0, 0, 0, so 2.5."""
    trained = trainer(tmp_path, environment_factory=Numbered, credit=CREDIT)
    batch = batch_of(trained, monkeypatch)
    assert of_steps(batch) == [
        [-0.8333, 0.8333, 6.6667], [-0.8333, 0.8333, -3.3333], [-0.8333, -2.5], [-0.8333, -2.5]]
    assert [[step["state"] for step in steps] for steps in logged(tmp_path)] == [
        ["even", "odd", "even"], ["even", "odd", "even"], ["even", "odd"], ["even", "odd"]]


@pytest.mark.parametrize("credit", [
    {"estimator": "gigpo"}, {"estimator": "adastep"}, {"estimator": "hgpo"}, {"estimator": "gagpo_loo"},
    {"estimator": "grpo"}, {"estimator": "reinforce_pp"}, {"state_key": "environment"}, {"state_key": "prompt"},
    {"state_key": "similarity", "similarity": 0.9}], ids=lambda credit: "-".join(map(str, credit.values())))
def test_estimators_and_state_keys_run(
        tmp_path: Path, given_answers: None, monkeypatch: pytest.MonkeyPatch, credit: dict[str, Any]):
    batch = batch_of(trainer(tmp_path, environment_factory=Numbered, credit=credit), monkeypatch)
    assert max(of_steps(batch)[0]) > 0


def test_the_log_is_read_by_the_explorer_and_by_gagpo_credit(
        tmp_path: Path, given_answers: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    trainer(tmp_path, environment_factory=Rooms, credit=CREDIT, config={"max_steps": 2}).train()
    (run,) = open_runs([tmp_path / "gagpo"])
    entries = run.groups()
    assert [(entry.step, entry.episodes, entry.won, entry.steps) for entry in entries] == [(1, 4, 1, 10), (2, 4, 1, 10)]
    group = run.group(entries[0].file, entries[0].group)
    assert [round(step.advantage, 4) for step in group.episodes[0].steps] == [0.8333, 6.6667, 0.0]
    assert run.credit.gamma == 1.0
    assert main(["credit", str(tmp_path / "gagpo/groups/step-00000001.jsonl"), "--gamma", "1", "--lam", "0",
                 "--normalize", "none", "--table"]) == 0
    assert "6.6667" in capsys.readouterr().out


def rooms_rollout(prompts: list[Any], trained: Any) -> dict[str, Any]:
    """Plays PLAYS by hand: what the model says, and after it what the game says."""
    encode, rows = trained.processing_class.encode, {"prompt_ids": [], "completion_ids": [], "env_mask": []}
    for prompt, play in zip(prompts, PLAYS, strict=True):
        rows["prompt_ids"].append(encode(prompt[0]["content"]))
        ids, mask, room = [], [], 0
        for way in play:
            room += 1 if way == "east" else -1
            for text, own in ((way, 1), (f"[room {room}]", 0)):
                ids += encode(text)
                mask += [own] * len(encode(text))
        rows["completion_ids"].append([*ids, *encode("done<|im_end|>")])
        rows["env_mask"].append([*mask, *[1] * len(encode("done<|im_end|>"))])
    return {**rows, "logprobs": [[-1.0] * len(ids) for ids in rows["completion_ids"]],
            "won": [play == ["east", "east"] for play in PLAYS]}


def reward(won: list[bool], **_: Any) -> list[float | None]:
    return [10.0 * each for each in won]


def test_a_rollout_function_runs_with_the_text_between_the_steps_as_states(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = trainer(tmp_path, rollout_func=rooms_rollout, reward_funcs=reward, credit=CREDIT)
    batch = batch_of(trained, monkeypatch)
    assert of_steps(batch) == [[0.8333, 6.6667, 0.0], [0.8333, -3.3333, 0.0], [-2.5, 0.0], [0.8333, -3.3333]]
    assert [(step["state"], step["action"]) for step in logged(tmp_path)[0]] == [
        ("Reach room 2. ", "east"), ("[room 1]", "east"), ("[room 2]", "done")]


def test_a_rollout_function_may_give_the_states(tmp_path: Path):
    def rollout(prompts: list[Any], trained: Any) -> dict[str, Any]:
        return {**rooms_rollout(prompts, trained), "credit_states": [["s"] * (len(play) + 1) for play in PLAYS]}

    trainer(tmp_path, rollout_func=rollout, reward_funcs=reward).train()
    assert {step["state"] for steps in logged(tmp_path) for step in steps} == {"s"}


def go(way: str) -> str:
    """Go somewhere.

    Args:
        way: east or west
    """
    return f"You went {way}."


def test_tools_without_an_environment_run(tmp_path: Path, given_answers: None, monkeypatch: pytest.MonkeyPatch):
    """The state is the tool's text. All start at the prompt, where V̄ is 2.5, and nobody earns anything after `west`."""
    def first_wins(prompts: list[Any], **_: Any) -> list[float]:
        return [10.0, 0.0, 0.0, 0.0]

    batch = batch_of(trainer(tmp_path, tools=[go], reward_funcs=first_wins, credit=CREDIT), monkeypatch)
    assert [step["state"] for step in logged(tmp_path)[1]] == ["Reach room 2. ", "You went east.", "You went west."]
    assert of_steps(batch)[2] == [-2.5, 0.0]


def test_an_episode_without_a_reward_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The two episodes that are left are compared with each other alone: 10 - 0 and 0 - 10."""
    def some(won: list[bool], **_: Any) -> list[float | None]:
        return [10.0, None, 0.0, None]

    trained = trainer(tmp_path, rollout_func=rooms_rollout, reward_funcs=some,
                      credit={"estimator": "rloo", "statistics": "trajectories"})
    batch = batch_of(trained, monkeypatch)
    rows = of_steps(batch)
    assert rows[1] == [0.0] * 3
    assert rows[3] == [0.0] * 2
    assert rows[0] == [10.0] * 3
    assert rows[2] == [-10.0] * 2


@pytest.mark.parametrize(("credit", "message"), [
    ({"gama": 1}, "unknown option gama"),
    ({"gamma": 2}, "option gamma cannot be 2"),
    ({"estimator": "ppo"}, "option estimator ppo: it needs a critic, which GRPOTrainer does not have"),
    ({"estimator": "rlvmr"}, "option estimator rlvmr: TRL's episodes do not say which kind of reasoning they are"),
    ({"stay": True}, "option stay: TRL's episodes do not say which actions changed nothing"),
    ({"bootstrap": True}, "option bootstrap: TRL's episodes do not say in which state an episode was cut"),
    ({"state_key": "observation+admissible"}, "TRL's episodes have no admissible actions; add them to credit_state"),
    ({"penalty": 0.5}, "option penalty: TRL's episodes do not say which outputs were malformed"),
])
def test_an_option_that_cannot_work_is_refused_by_name(tmp_path: Path, credit: dict[str, Any], message: str):
    with pytest.raises(gagpo.UserError, match=message.replace("+", r"\+")):
        trainer(tmp_path, environment_factory=Rooms, credit=credit)
    assert not (tmp_path / "gagpo").exists()


def test_arguments_of_trl_that_cannot_work_are_refused_by_name(tmp_path: Path, given_answers: None):
    with pytest.raises(gagpo.UserError, match="rollout_func together with tools or environment_factory"):
        trainer(tmp_path, rollout_func=rooms_rollout, environment_factory=Rooms)
    with pytest.raises(gagpo.UserError, match="multi_objective_aggregation=normalize_then_sum: steps have one reward"):
        trainer(tmp_path, environment_factory=Rooms, config={"multi_objective_aggregation": "normalize_then_sum"})
    with pytest.raises(gagpo.UserError, match=r"a state of episode 0 of .* is 7, which is no text"):
        trainer(tmp_path, environment_factory=type("Wrong", (Rooms,), {"credit_state": 7})).train()


def test_without_tools_an_answer_is_one_step():
    ids = torch.zeros(2, 4, dtype=torch.long)
    advantages = token_advantages([[(0, 3)], [(0, 1), (2, 4)]], [[2.0], [1.0, -1.0]], ids)
    assert advantages.tolist() == [[2, 2, 2, 0], [1, 0, -1, -1]]


@pytest.mark.skipif("GAGPO_MODEL" not in os.environ, reason="$GAGPO_MODEL is no folder of a pretrained model")
def test_a_pretrained_model_trains_on_what_it_says_itself(tmp_path: Path):
    """It plays two turns in its own words. Episodes have two steps, and the first ones of a group share their state."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(os.environ["GAGPO_MODEL"], dtype=torch.float32)
    own = AutoTokenizer.from_pretrained(os.environ["GAGPO_MODEL"], padding_side="left")

    def say(trained: Any, ids: list[int]) -> list[int]:
        with torch.no_grad():
            made = trained.model.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=True, top_k=0)
        return made[0, len(ids):].tolist()

    def rollout(prompts: list[Any], trained: Any) -> dict[str, Any]:
        rows: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": []}
        for prompt in prompts:
            start = own.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
            first, reply = say(trained, start), own.encode(" And then? ")
            second = say(trained, [*start, *first, *reply])
            rows["prompt_ids"].append(start)
            rows["completion_ids"].append([*first, *reply, *second])
            rows["env_mask"].append([1] * len(first) + [0] * len(reply) + [1] * len(second))
            rows["logprobs"].append([0.0] * len(rows["completion_ids"][-1]))
        return rows

    def letters(completions: list[Any], **_: Any) -> list[float]:
        return [float(completion[0]["content"].count("e")) for completion in completions]

    trained = trainer(tmp_path, model=model, processing_class=own, rollout_func=rollout, reward_funcs=letters,
                      config={"per_device_train_batch_size": 2, "num_generations": 2, "learning_rate": 1e-4})
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    trained.train()
    steps = logged(tmp_path)
    assert [len(episode) for episode in steps] == [2, 2]
    assert steps[0][0]["state"] == steps[1][0]["state"] == "Reach room 2. "
    assert steps[0][1]["state"] == "And then?"
    if len({episode[1]["reward"] for episode in steps}) > 1:
        assert not torch.equal(before, model.model.layers[0].mlp.up_proj.weight)


def test_gagpo_credit_reads_the_completions_that_trl_logs(
        tmp_path: Path, given_answers: None, capsys: pytest.CaptureFixture[str]):
    """Their parquet gives the same returns as our own log of the same step."""
    trainer(tmp_path, environment_factory=Rooms, credit=CREDIT, config={"log_completions": True}).train()
    capsys.readouterr()
    returns = []
    for file, form in (("completions/completions_00001.parquet", "chat"),
                       ("gagpo/groups/step-00000001.jsonl", "gagpo")):
        assert main(["credit", str(tmp_path / file), "--from", form, "--gamma", "1"]) == 0
        returns.append(json.loads(capsys.readouterr().out)["returns"])
    assert returns[0] == returns[1] == [[10, 10, 10], [0, 0, 0], [0, 0], [0, 0]]


def test_an_episode_without_a_step_has_no_advantage_in_trls_table():
    trainer = SimpleNamespace(_logs={"advantages": [9.0, 9.0]})
    GagpoTrainer._replace_logged(trainer, [[1.0, 3.0], []])
    assert trainer._logs["advantages"] == [2.0, 0.0]
