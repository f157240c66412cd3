"""The memory that the plan says against the resident memory of a learner that takes a step, in a process of its own.

test_memory.py counts the parts of the plan, with and without checkpointing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learner_tiny import make_config
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.model.memory import LOGIT_TENSORS, memory, shape_of, training_of

GROUPS, MEMBERS, STEPS, PROMPT, RESPONSE = 4, 4, 3, 60, 4
PACKS = 2
"""Packs of one update. The first pack of an update takes less memory, because there are no gradients yet."""
TOKENS = GROUPS * MEMBERS * STEPS * (PROMPT + RESPONSE) // PACKS
LEARNER = {"groups_per_step": GROUPS, "minibatch_rows": 1000, "token_budget": TOKENS, "loss": {"kl": 0.1},
           "checkpointing": True}
MEASURED = """
import json, sys
from pathlib import Path
import msgspec, numpy as np, torch
from learner_tiny import make_config, make_groups
from learner.rank_group import RankGroup
from learner.trainer import Learner

def resident(field):
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024

groups, members, steps, prompt, response = map(int, sys.argv[3:])
rng = np.random.default_rng(0)
def same_length(step):
    ids = [rng.integers(0, 97, n, dtype=np.int32) for n in (prompt, response)]
    span = msgspec.structs.replace(step.spans[0], end=response)
    return msgspec.structs.replace(step, prompt_ids=ids[0], response_ids=ids[1], spans=[span],
                                   logprobs=-rng.random(response, dtype=np.float32))
made = [[msgspec.structs.replace(episode, steps=[same_length(episode.steps[0]) for _ in range(steps)])
         for episode in group] for group in make_groups(0, count=groups, size=members)]
config, rank_group = make_config(**json.loads(sys.argv[2])), RankGroup(0, 1)
torch.nn.Linear(64, 64)(torch.ones(8, 64)).sum().backward()  # what torch itself takes at its first pass
before = resident("VmRSS")
learner = Learner(config, Path(sys.argv[1]), rank_group)
for _ in range(2):  # the moments of the optimizer are there from the first update on
    learner.train(made)
print(resident("VmHWM") - before)
"""


def test_a_step_takes_the_memory_that_the_plan_says(tmp_path: Path):
    """Within 20%. Logits are counted as they are: the plan's are for a real vocabulary."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=97, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    sizes = [str(n) for n in (GROUPS, MEMBERS, STEPS, PROMPT, RESPONSE)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), json.dumps(LEARNER), *sizes], text=True, check=True,
        stdout=subprocess.PIPE, timeout=300, env=os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]), "MALLOC_ARENA_MAX": "1",
            "MALLOC_MMAP_THRESHOLD_": "65536"})  # freed memory goes back at once
    shape = shape_of(json.loads((tmp_path / "config.json").read_text()), sum(p.numel() for p in model.parameters()))
    training = replace(training_of(make_config(**LEARNER), critic=False), tokens=TOKENS)
    said = memory(shape, training)
    logits = LOGIT_TENSORS * 4 * GROUPS * MEMBERS * STEPS * RESPONSE // PACKS * shape.vocabulary
    expected = said.total - said.logits + logits
    assert int(done.stdout.splitlines()[-1]) == pytest.approx(expected, rel=0.2)
