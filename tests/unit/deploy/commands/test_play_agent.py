"""An agent that plays without vLLM samples as runs do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from deploy.cli import main
from deploy.commands.play import Agent, load_agent
from deploy.runs.configs import load_config
from envservice.base import Outcome
from envservice.text.plain_prompts import PLAIN
from learner.cold_start.scratch_model import scratch_model, train_tokenizer
from rollout.prompt_renderer import PromptRenderer
from services.config.tree import ModelSection


def test_the_sampling_of_a_base_model_does_not_shape_the_agents_answers(tmp_path: Path):
    """With this top_p a model always takes the likeliest token. Fresh weights make all tokens about as likely."""
    tokenizer = train_tokenizer(["you are in a room", "you see a desk"])
    tokenizer.save_pretrained(tmp_path)
    model = scratch_model(ModelSection(hidden=32, layers=1, heads=1, intermediate=32), tokenizer, max_positions=256,
                          seed=0)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_p": 1e-9}))
    config = load_config("alfworld-tiny", ("rollout.max_response_tokens=4", "eval.temperature=1"))
    agent = load_agent(config, tmp_path, seed=0)
    first = Outcome(observation="You are in a room.", admissible_actions=["look"])
    assert len({str(agent.answer(first, [], first)) for _ in range(5)}) > 1


def test_an_episode_ends_at_the_first_prompt_that_a_run_would_not_read(tmp_path: Path, capsys):
    tokenizer = train_tokenizer(["you are in a room", "you see a desk"])
    tokenizer.save_pretrained(tmp_path)
    scratch_model(ModelSection(hidden=32, layers=1, heads=1, intermediate=32), tokenizer, max_positions=256,
                  seed=0).save_pretrained(tmp_path)
    assert main(["play", "alfworld-gen/valid/look-0001", "--agent", str(tmp_path), "--config", "alfworld-tiny",
                 "rollout.max_prompt_tokens=16"]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("not won after 0 steps\n")
    assert "the next prompt is longer than rollout.max_prompt_tokens" in printed.err


@pytest.mark.parametrize(("stops", "shown"), [(("ab",), "ab"), (("no such tag",), "abababab")])
def test_an_answer_ends_at_a_tag_of_several_tokens_as_in_a_run(stops: tuple[str, ...], shown: str):
    """The model went on to its limit, and a second action behind the first made an answer invalid."""
    tokenizer = byte_tokenizer()
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=260, hidden_size=260, intermediate_size=8, num_hidden_layers=1,
                                              num_attention_heads=1)).eval()
    with torch.no_grad():  # writes b after a, and a after everything else
        for weight in (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj, model.lm_head):
            weight.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(260))
        model.lm_head.weight[a] = 100
        model.lm_head.weight[b, a] = 200
    text = PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer, stops=stops)
    first = Outcome(observation="You are in a room.", admissible_actions=["ab"])
    agent = Agent(model=model, text=text, temperature=1.0, max_tokens=8, max_prompt_tokens=10_000)
    answer = agent.answer(first, [], first)
    assert answer is not None
    assert answer[0] == shown
