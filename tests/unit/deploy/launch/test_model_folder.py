"""A model's folder that is not whole, or whose files do not fit one another, is refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deploy.launch.model_folder import check_model, check_weights
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


def test_a_model_folder_that_is_whole_passes(model: Path):
    check(model)


def test_an_unfinished_download_does_not_pass(model: Path):
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}))
    assert refusal(model) == (
        f"the model at {model} lacks 1 of the files of its weights, such as model-00002-of-00002.safetensors; "
        "finish its download, or copy the model again")


def test_the_settings_of_a_tokenizer_are_not_the_tokenizer(model: Path):
    (model / "tokenizer.json").rename(model / "tokenizer_config.json")
    assert f"the model at {model} has no tokenizer" in refusal(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_folder_must_be_whole(name: str, model: Path):
    (model / name).unlink()
    assert f"the model at {model} has no " in refusal(model)
