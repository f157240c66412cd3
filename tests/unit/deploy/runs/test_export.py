"""An exported folder works without the run that it comes from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from deploy.runs.configs import load_config
from deploy.runs.export import export
from deploy.runs.folder import RunFolder
from deploy.runs.policies import EXPORTED_CONFIG
from learner.checkpoints.state_files import save_state
from learner.cold_start.scratch_model import train_tokenizer
from services.config.file import dump_config

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[agent]"


def model_at(folder: Path) -> Path:
    tokenizer = train_tokenizer(["you are in a room", "you see a desk"])
    tokenizer.save_pretrained(folder)
    return folder


def test_an_exported_config_says_how_to_play_and_no_addresses_or_secrets(tmp_path: Path):
    out = tmp_path / "out"
    config = load_config("webshop-tiny", (
        "redis.url=rediss://gagpo:hunter2@db.corp:6379/0", "redis.password_file=/secrets/redis",
        "env.urls=[http://games.corp:8100]", "env.token_file=/secrets/env", "env.search.url=[http://find.corp]",
        "prompting.key_file=/secrets/key", "storage.url=s3://corp-bucket/runs", "ray.address=ray.corp:6379",
        f"runs_dir={tmp_path / 'private'}", "env.webshop.goals=human",
        "env.history=5", "model.system_prompt=You shop.", "rollout.max_response_tokens=99", "eval.temperature=0.7"))
    dump_config(config, tmp_path / "run/config.yaml")

    export(RunFolder(tmp_path / "run"), 3, model_at(tmp_path / "model"), out)

    text = (out / EXPORTED_CONFIG).read_text()
    assert [word for word in ("corp", "secrets", "hunter2", "private") if word in text] == []
    played = load_config(out / EXPORTED_CONFIG)
    assert (played.name, played.env.webshop, played.env.history) == ("webshop-tiny", config.env.webshop, 5)
    assert (played.model.system_prompt, played.eval.temperature) == ("You shop.", 0.7)
    assert (played.env.name, played.env.prompt, played.env.max_steps) == (
        config.env.name, config.env.prompt, config.env.max_steps)
    assert played.rollout.max_response_tokens == 99


def test_a_bar_in_a_stop_is_no_border_of_a_cell_in_the_card(tmp_path: Path):
    dump_config(load_config("alfworld-tiny"), tmp_path / "run/config.yaml")
    export(RunFolder(tmp_path / "run"), 3, model_at(tmp_path / "model"), tmp_path / "out")
    assert r"| an answer ends at | `</action>`, `<\|endoftext\|>`, or after 24 tokens |" in (
        tmp_path / "out/README.md").read_text()


def test_the_card_says_how_to_fetch_a_base_model_of_the_hub(tmp_path: Path):
    cached = model_at(tmp_path / "models--acme--tiny/snapshots" / ("0" * 40))
    dump_config(load_config("alfworld-tiny", (f"model.path={cached}",)), tmp_path / "run/config.yaml")
    export(RunFolder(tmp_path / "run"), 3, model_at(tmp_path / "model"), tmp_path / "out")
    assert f"(`hf download acme/tiny --revision {'0' * 40}`)" in (tmp_path / "out/README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "out/README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "out" / EXPORTED_CONFIG).read_text()


def test_the_card_of_a_model_that_a_program_asks_names_the_program_and_no_prompt(tmp_path: Path):
    dump_config(load_config("alfworld-tiny", ("agent.name=rollout.agents.conversation:agent", "agent.max_calls=2")),
                tmp_path / "run/config.yaml")
    export(RunFolder(tmp_path / "run"), 3, model_at(tmp_path / "model"), tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "| asked by | the program `rollout.agents.conversation:agent`, at most 2 calls an episode |" in card
    assert "prompt" not in card.partition("largest prompt")[0]
    assert "gagpo serve-agent out" in card


def test_an_exported_model_samples_as_in_training_and_not_as_its_base_model_did(tmp_path: Path):
    """Qwen2.5's instruct models penalise repeated tokens, and vLLM's server would do as the folder says."""
    dump_config(load_config("alfworld-tiny", ("eval.temperature=0.7",)), tmp_path / "run/config.yaml")
    (model_at(tmp_path / "model") / "generation_config.json").write_text(json.dumps({
        "bos_token_id": 1, "eos_token_id": [2], "do_sample": True, "repetition_penalty": 1.1, "temperature": 0.2,
        "top_p": 0.8, "top_k": 20, "min_p": 0.1}))
    export(RunFolder(tmp_path / "run"), 3, tmp_path / "model", tmp_path / "out")
    said = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert (said["temperature"], said["top_p"], said["top_k"]) == (0.7, 1.0, 0)
    assert said["bos_token_id"] == 1
    assert not {"repetition_penalty", "min_p"} & said.keys()


def test_a_template_of_the_config_goes_with_the_model(tmp_path: Path):
    model, run, out = tmp_path / "model", tmp_path / "run", tmp_path / "out"
    tokenizer = train_tokenizer(["you are in a room", "you see a desk"])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(model)
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    config = load_config("alfworld-tiny", ("env.prompt=full", f"model.chat_template={template}"))
    dump_config(config, run / "config.yaml")

    export(RunFolder(run), 3, model, out)

    template.unlink()
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATE
    assert load_config(out / EXPORTED_CONFIG).model.chat_template is None


def test_an_export_that_fails_leaves_no_copy_of_the_model_behind(tmp_path: Path):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    config = load_config("alfworld-tiny", ("env.prompt=full", f"model.chat_template={tmp_path / 'template.jinja'}"))
    dump_config(config, tmp_path / "run/config.yaml")
    (tmp_path / "template.jinja").unlink()
    model = model_at(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="template"):
        export(RunFolder(tmp_path / "run"), 3, model, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


def a_run_with_adapters(folder: Path, *changes: str) -> tuple[RunFolder, Path]:
    """Returns a run of adapters for base/acme-1b and the model of its checkpoint, whose only adapter is all ones."""
    base = model_at(folder / "base/acme-1b")
    dump_config(load_config("alfworld-tiny", (f"model.path={base}", "env.prompt=full", "learner.lora.rank=2",
                                              "learner.lora.alpha=3", *changes)), folder / "run/config.yaml")
    layer = "hf.model.layers.0.self_attn.q_proj"
    state = {"model": {f"{layer}.lora_a": torch.ones(2, 4), f"{layer}.lora_b": torch.ones(6, 2)},
             "optimizer": {f"{layer}.lora_a": torch.zeros(2, 4)}}
    (folder / "step").mkdir()
    save_state(state, folder / "step").result(60)
    return RunFolder(folder / "run"), model_at(folder / "step/hf")


def test_the_adapters_of_a_run_are_exported_beside_the_merged_model(tmp_path: Path, recwarn):
    run, model = a_run_with_adapters(tmp_path, "sft.enabled=false")
    recwarn.clear()  # saving without ranks warns, and only this test does so
    export(run, 3, model, tmp_path / "out")
    said = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["target_modules"]) == (2, 3, ["q_proj"])
    assert said["base_model_name_or_path"] == "acme-1b"
    stem = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    assert {name: value.shape for name, value in load_file(
        tmp_path / "out/adapter/adapter_model.safetensors").items()} == {
            f"{stem}A.weight": (2, 4), f"{stem}B.weight": (6, 2)}
    assert "| adapters |" in (tmp_path / "out/README.md").read_text()
    assert [str(one.message) for one in recwarn if "torch.distributed" in str(one.message)] == []


def test_adapters_for_the_model_of_a_cold_start_stay_in_the_run(tmp_path: Path):
    """Nobody else has the model that they belong to."""
    run, model = a_run_with_adapters(tmp_path, "sft.enabled=true")
    export(run, 3, model, tmp_path / "out")
    assert not (tmp_path / "out/adapter").exists()
    assert "| adapters |" not in (tmp_path / "out/README.md").read_text()
