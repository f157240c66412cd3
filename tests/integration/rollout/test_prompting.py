"""A prompting baseline on the real engine: by HTTP through our own OpenAI-compatible endpoint, and in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer

from deploy.training.prompting import make_plan, play
from envservice.text.plain_prompts import PLAIN
from rollout.agents.session import AgentSession
from rollout.agents.worker_endpoint import endpoint
from rollout.engine.engine import Engine
from rollout.prompt_renderer import PromptRenderer
from rollout.prompting.endpoint import EndpointModel, endpoint_client
from rollout.prompting.model import SampledModel
from services.config.file import default_config
from services.config.tree import RolloutSection
from services.errors import UserError
from services.records import Ticket

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


def config():
    return default_config(["env.name=toy_environment:SPEC", "env.max_steps=3", "eval.panel=2",
                           "prompting.concurrency=2", "rollout.max_response_tokens=8"])


def text() -> PromptRenderer:
    return PromptRenderer(template=PLAIN["full"](2), tokenizer=byte_tokenizer())


async def test_direct_prompting_by_http(sampler: Engine, tmp_path: Path):
    """The tokens that the endpoint counted are those that the engine read and sampled."""
    session = AgentSession(
        ticket=Ticket(group="eval/0", k=0, size=1, task="toy/test/00", seed=0, kind="eval", temperature=1.0,
                      max_steps=9),
        engine=sampler, text=text(), prompt_tokens=384, response_tokens=8, max_calls=64)
    settings = config().prompting
    async with endpoint() as served:
        with served.serving(session, None):
            async with endpoint_client(session.base_url, session.api_key, settings) as http:
                model = EndpointModel(http=http, model="", settings=settings, temperature=1.0, max_tokens=8)
                await model.choose_model()
                assert model.model == "policy"
                summary = await play(make_plan(config(), "direct", None), model, "policy", tmp_path / "e.jsonl",
                                     lambda *_: None)
            async with endpoint_client(session.base_url, "another", settings) as http:
                model = EndpointModel(http=http, model="policy", settings=settings, temperature=1.0, max_tokens=8)
                with pytest.raises(UserError, match="refuses the key"):
                    await model.ask([{"role": "user", "content": "hello"}], seed=0)
    assert (summary["tasks"], summary["dropped"]) == (2, 0)
    assert summary["calls"] == len(session.steps)
    assert summary["prompt_tokens"] == sum(len(step.prompt_ids) for step in session.steps)
    assert summary["answer_tokens"] == sum(len(step.response_ids) for step in session.steps)


async def test_react_in_our_own_sampler(sampler: Engine, sampler_config: RolloutSection, tmp_path: Path):
    """A conversation longer than the model reads ends its trial; the seeds make the rest repeatable."""
    limits = sampler_config.model_copy(update={"max_prompt_tokens": 384, "max_response_tokens": 8})
    played = []
    for number in range(2):
        model = SampledModel(engine=sampler, text=text(), limits=limits, temperature=1.0, tags=False)
        file = tmp_path / f"{number}.jsonl"
        summary = await play(make_plan(config(), "react", None), model, "tiny", file, lambda *_: None)
        played.append(summary["prompt_tokens"] / max(1, summary["calls"]))
        assert summary["tasks"] == 2
    assert played[0] == played[1] < 384
