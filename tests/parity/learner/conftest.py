"""A tiny Qwen2 in a folder, and steps of random tokens."""

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.records import Step, Version, VersionSpan

torch.set_num_threads(1)


@pytest.fixture(params=["tied", "untied"], scope="session")
def any_model_path(request, tmp_path_factory):
    return _model(tmp_path_factory.mktemp(request.param), tied=request.param == "tied")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return _model(tmp_path_factory.mktemp("model"), tied=True)


def _model(folder, *, tied):
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
                         max_position_embeddings=64, initializer_range=0.3, eos_token_id=0, bos_token_id=None)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def make_step(rng, *, observation="s", reward=0.0, valid=True, step=0):
    prompt, response = (rng.integers(0, 97, rng.integers(*span), dtype=np.int32) for span in ((3, 30), (1, 9)))
    return Step(
        observation=observation, prompt_ids=prompt, response_ids=response,
        logprobs=-rng.random(len(response), dtype=np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=step), start=0, end=len(response))],
        action="go", valid=valid, admissible=True, reward=reward)
