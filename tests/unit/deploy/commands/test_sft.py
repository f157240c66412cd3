"""The cold start from games to a model folder, for a fraction of a second of training."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy.runs.configs import load_config
from deploy.training import rank_imitation
from deploy.training.cold_start import cold_start
from services.config.file import lay_over
from services.errors import UserError


@pytest.fixture
def config(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    return load_config("alfworld-tiny", [
        "env.alfworld.task_types=[look]", "env.max_steps=12", "sft.demos_per_game=1", "model.hidden=32",
        "model.heads=1", "model.layers=1", "learner.threads=1"])


def test_a_cold_start_writes_a_model_that_loads_and_can_be_continued(config, tmp_path):
    lines: list[str] = []
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sft.json").write_text("the old one")
    with (tmp_path / "first" / "sft.json").open() as reader:
        first = cold_start(config, tmp_path / "first", minutes=0.005, report=lines.append)
        assert reader.read() == "the old one"  # it was replaced as a whole
    facts = json.loads((first / "sft.json").read_text())
    assert facts["format"] == 1
    assert facts["continued_from"] is None
    assert facts["training"]["updates"] >= 1
    shown = facts["demonstrations"]
    assert shown["split"] == "train"
    assert shown["rows"] > shown["won"] > 0
    assert any(line.startswith("demonstrations:") for line in lines)
    tokenizer = AutoTokenizer.from_pretrained(first)
    assert AutoModelForCausalLM.from_pretrained(first).config.vocab_size == len(tokenizer) == facts["vocabulary"]

    second = cold_start(config, tmp_path / "second", minutes=0.005, continue_from=first, report=lines.append)
    more = json.loads((second / "sft.json").read_text())
    assert more["continued_from"] == str(first)
    assert more["demonstrations"]["digest"] == shown["digest"]  # the same games,
    assert more["demonstrations"]["rows"] != shown["rows"]  # other demonstrations
    assert AutoTokenizer.from_pretrained(second).get_vocab() == tokenizer.get_vocab()


def test_one_rank_goes_on_from_states_of_several_and_they_go_once_the_model_is_whole(config, tmp_path, monkeypatch):
    """A machine of two is lost: `learner.ranks=1` goes on where both of them were."""
    model = cold_start(config, tmp_path / "model", minutes=0.001, report=lambda _: None)
    (tmp_path / ".new.ranks" / "state-00000007").mkdir(parents=True)
    training = {"updates": 9, "rows": 9, "epochs": 1.0, "seconds": 1.0, "loss_response": 1.0, "loss_prompt": None}

    def goes_on(_config, _model, out, _lesson, **_):
        out.mkdir()
        return {"training": training, "parameters": 1, "ranks": 1}

    monkeypatch.setattr(rank_imitation, "imitate", goes_on)
    out = cold_start(lay_over(config, {"model.path": model}), tmp_path / "new", minutes=1.0, report=lambda _: None)
    assert json.loads((out / "sft.json").read_text())["training"]["updates"] == 9
    assert not (tmp_path / ".new.ranks").exists()


def test_a_model_path_without_a_model_is_named(config, tmp_path):
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": tmp_path / "none"})})
    with pytest.raises(UserError, match="holds no model"):
        cold_start(config, tmp_path / "out", minutes=0.005, report=lambda _: None)


def test_trajectories_of_a_file_are_imitated_for_whole_epochs(config, tmp_path):
    """Five rows in batches of two: three updates per epoch, two epochs."""
    file = tmp_path / "shown.jsonl"
    steps = [{"prompt": f"Now: a mug {n}\n", "response": f"<think>mug</think><action>take mug {n}</action>"}
             for n in range(5)]
    file.write_text(json.dumps({"steps": steps}) + "\n")
    config = lay_over(config, {"sft.file": str(file), "sft.batch_rows": 2})
    lines: list[str] = []
    out = cold_start(config, tmp_path / "out", minutes=1, epochs=2, report=lines.append)
    facts = json.loads((out / "sft.json").read_text())
    assert (facts["training"]["updates"], facts["training"]["rows"], facts["epochs"]) == (6, 10, 2)
    assert (facts["demonstrations"]["split"], facts["demonstrations"]["rows"]) == ("file", 5)
    assert lines[0] == f"demonstrations: 1 episode with 5 answers in {file}"


def test_examples_that_are_all_too_long_are_named(config, tmp_path):
    file = tmp_path / "shown.jsonl"
    file.write_text(json.dumps({"steps": [{"prompt": "word " * 300, "response": "<action>x</action>"}]}) + "\n")
    config = lay_over(config, {
        "sft.file": str(file), "rollout.max_prompt_tokens": 16, "rollout.max_response_tokens": 4})
    with pytest.raises(UserError, match="all 1 demonstrated steps are longer than 20 tokens"):
        cold_start(config, tmp_path / "out", minutes=1, report=lambda _: None)
