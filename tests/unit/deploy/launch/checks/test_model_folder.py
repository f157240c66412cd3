"""A model's folder that is not whole, or whose files do not fit one another, is refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deploy.launch.checks.model_folder import check_model, check_weights
from services.errors import UserError


def check(folder: Path) -> None:
    check_model(folder)
    check_weights(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        check(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("name", "text"), [
    ("tokenizer.json", "{}"), ("tokenizer.json", "[" * 100_000), ("model.safetensors", "\x7f" * 100),
    ("config.json", '{"hidden_size": "wide"}'), ("config.json", '{"vocab_size": -1}'), ("config.json", "[]")])
def test_a_model_that_cannot_be_loaded_does_not_pass(name: str, text: str, model: Path):
    (model / name).write_text(text)
    assert str(model / name) in refusal(model)


def test_weights_of_other_shapes_than_the_config_says_do_not_pass(model: Path):
    save_file({"model.embed_tokens.weight": np.zeros((3, 5), np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 600, "vocab_size": 4, "hidden_size": 5}))
    assert "of shape (3, 5), and config.json says (4, 5)" in refusal(model)


@pytest.mark.parametrize(("said", "passes"), [
    ({"num_hidden_layers": 2}, True), ({"num_hidden_layers": 1, "num_nextn_predict_layers": 1}, True), ({}, True),
    ({"num_hidden_layers": 1}, False), ({"num_hidden_layers": 3}, False)])
def test_weights_of_other_layers_than_the_config_says_do_not_pass(said: dict[str, int], passes: bool, model: Path):
    """The sampler would end at weights without a layer, or the learner draw the missing ones at random."""
    weights = {f"model.layers.{layer}.mlp.up_proj.weight": np.zeros((2, 2), np.float32) for layer in range(2)}
    save_file({**weights, "mtp.layers.5.norm.weight": np.zeros(2, np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(said))
    if passes:
        check(model)
    else:
        assert refusal(model) == (
            f"the model at {model} has weights of 2 layers, up to number 1, and its config.json says "
            f"num_hidden_layers={said['num_hidden_layers']}; copy the model again")


def test_a_number_of_extra_layers_that_is_none_does_not_pass(model: Path):
    save_file({"model.layers.0.mlp.up_proj.weight": np.zeros((2, 2), np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": 1, "num_nextn_predict_layers": "one"}))
    assert refusal(model) == (
        f"{model / 'config.json'} is broken (num_nextn_predict_layers is 'one'); copy the model again")


def test_a_model_folder_that_is_whole_passes(model: Path):
    check(model)


def test_an_unfinished_download_does_not_pass(model: Path):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}))
    assert refusal(model) == (
        f"the model at {model} lacks 1 of the files of its weights, such as model-00002-of-00002.safetensors; "
        "finish its download, or copy the model again")


@pytest.mark.parametrize(("name", "instead", "lacks"), [
    ("config.json", "", ""), ("model.safetensors", "", ""), ("tokenizer.json", "", ""),
    ("tokenizer.json", "tokenizer_config.json", "tokenizer"), ("tokenizer.json", "tekken.json", "tokenizer"),
    ("model.safetensors", "consolidated.safetensors", "weights")])
def test_a_model_folder_must_be_whole(name: str, instead: str, lacks: str, model: Path):
    """Mistral's tokenizer has neither a chat template nor the special tokens by which answers begin and end."""
    (model / name).rename(model / (instead or "elsewhere"))
    assert f"the model at {model} has no {lacks}" in refusal(model)


def test_the_folder_of_a_run_is_told_where_its_models_are(tmp_path: Path):
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_text("{}")
    assert refusal(tmp_path) == (
        f"the model at {tmp_path} has no config.json: it is the folder of a run; set model.path to a model in it, "
        f"such as {tmp_path / 'model'}, or to what `gagpo export` wrote")
