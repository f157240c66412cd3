"""Opens the model that a prompting baseline asks: one behind an endpoint, or a folder in our own sampler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deploy.runs.policies import PlayablePolicy
from rollout.prompting.endpoint import EndpointModel, endpoint_client
from rollout.prompting.model import AskedModel
from services.config.secrets import endpoint_key
from services.config.tree import Config


@asynccontextmanager
async def asked_endpoint(config: Config, url: str, name: str | None,
                         tell: Callable[[str], object]) -> AsyncIterator[tuple[AskedModel, str]]:
    """Yields a model behind an endpoint and its name: the only one served, if `name` is None. `tell`: see there."""
    async with endpoint_client(url, endpoint_key(config.prompting), config.prompting) as http:
        model = EndpointModel(http=http, model=name or "", settings=config.prompting,
                              temperature=config.eval.temperature, tell=tell,
                              max_tokens=config.rollout.max_response_tokens)
        if name is None:
            await model.choose_model()
        yield model, model.model


@asynccontextmanager
async def asked_sampler(config: Config, policy: PlayablePolicy) -> AsyncIterator[tuple[AskedModel, str]]:
    """Yields a policy's model in an engine of this process, and the name of its weights.

    Raises UserError if it has no chat template, or cannot be loaded.
    """
    from deploy.launch.checks.preflight import check_policy
    from rollout.engine.engine import Engine
    from rollout.prompt_renderer import load_text
    from rollout.prompting.sampler import SampledModel
    from services.chat import check_chat
    from services.records import Version

    check_policy(config)
    folder, text = policy.folder, load_text(str(policy.folder), config.env, config.model)
    assert text.chat is not None
    check_chat(text.chat, folder)
    engine = Engine(folder, Version(incarnation=0, step=0, digest="asked"), config=config.rollout,
                    dtype=config.model.dtype, seed=config.seed)
    await engine.start()
    try:
        yield SampledModel(engine=engine, text=text, limits=config.rollout,
                           temperature=config.eval.temperature), policy.name
    finally:
        await engine.close()
