"""Layers of adapters, looked up in the config of a model whose weights are holes."""

import pytest

from deploy.launch.checks.model_folder import check_adapters
from deploy.runs.configs import load_config
from services.errors import UserError


@pytest.mark.parametrize(("size", "targets", "expected"), [
    ("1.5b", "[q_proj, v_porj]", r"no layer of this model \(v_porj\); choose from down_proj, gate_proj"),
    ("1.5b", "[lm_head]", "names lm_head, whose weights are the embeddings too"), ("7b", "[lm_head]", None),
    ("7b", "[q_proj]", None)])
def test_names_are_those_of_the_models_own_layers(models, size, targets, expected):
    config = load_config("alfworld-tiny", [f"model.path={models[size]}", "learner.lora.rank=2",
                                           f"learner.lora.targets={targets}"])
    if expected is None:
        check_adapters(config)
        return
    with pytest.raises(UserError, match=expected):
        check_adapters(config)
