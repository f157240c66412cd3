"""An agent that plays without vLLM samples as runs do."""

import json
from pathlib import Path

from deploy.commands.play import load_agent
from deploy.runs.configs import load_config
from envservice.base import Outcome
from learner.cold_start.scratch_model import scratch_model, train_tokenizer
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
    assert len({agent.answer(first, [], first)[0] for _ in range(5)}) > 1
