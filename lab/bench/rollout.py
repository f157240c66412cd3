"""The rollout worker on real episodes against plain `LLM.generate` with the same prompts and response lengths.

Both use the same small random model and engine settings, and 64 sequences at once, on one machine in one run. The
worker also pays for Redis, HTTP, games, prompts and parsing. LLM.generate gets token ids and all cores. An untrained
model answers nonsense up to the response limit, which costs as much as a useful answer.

Run it on an idle machine only. The reference's OpenMP threads wait for each other, so another process on a core slows
the reference far more than the worker, and the ratio looks too good.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from deploy.members.env_server import EnvServer
from envservice.base import PromptTemplate, Turn
from envservice.registry import make_template, open_environment
from lab.bench.figures import Figure, Report, silent
from services.amounts import GIB
from services.config.file import dump_config
from services.config.tree import Config, EnvSection, ModelSection, RolloutSection
from services.process.addresses import held_port
from services.records import Episode, Step, Ticket, Version
from services.seeds import seed_for
from services.store.redis_server import private_redis
from services.store.store import Store
from services.weights.pack import Packed, pack_folder

CONFIG = Config(
    name="bench-rollout", steps=1,
    env=EnvSection(prompt="compact", history=6, max_steps=15),
    model=ModelSection(hidden=64, layers=3, heads=2, intermediate=160),
    rollout=RolloutSection(slots=64, max_prompt_tokens=480, max_response_tokens=12, kv_cache_gb=0.5, threads=1),
)  # fmt: skip
_TASKS = 32
_GROUP = 4
_WARM_GROUPS = 8
_DEADLINE_S = 600.0


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in about two minutes, most of them for starting two engines."""
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        path = Path(folder)
        report("a model", 0, 3)
        tasks = make_model(path / "model")
        dump_config(CONFIG, path / "config.yaml")
        server = EnvServer(0, held_port(), path / "config.yaml", path)
        with private_redis(path / "redis") as redis_url:
            server.start()
            server.wait()
            report("episodes by a rollout worker", 1, 3)
            try:
                episodes, seconds = asyncio.run(_play(path / "model", redis_url, server.url, tasks))
            finally:
                server.stop()
        rows = [step for episode in episodes for step in episode.steps]
        report("the same rows by the bare engine", 2, 3)
        bare = _generate(path / "model", rows)
    tokens = sum(len(row.response_ids) for row in rows)
    return [
        _figure("sampled tokens", tokens / seconds, "tokens/s", tokens / bare),
        _figure("sampled rows", len(rows) / seconds, "rows/s", len(rows) / bare),
    ]


def _figure(name: str, value: float, unit: str, reference: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, reference=reference, ratio=value / reference)


def make_model(folder: Path) -> list[str]:
    """Writes a fresh model and its tokenizer to `folder`. Returns the tasks to play."""
    from learner.cold_start.scratch_model import scratch_model, train_tokenizer

    environment = open_environment(CONFIG.env)
    tasks = environment.tasks(environment.training_splits()[0])[:_TASKS]
    template = make_template(CONFIG.env)
    tokenizer = train_tokenizer([text for task in tasks for text in _walk(environment.open(task), template)])
    rollout = CONFIG.rollout
    positions = rollout.row_tokens
    scratch_model(CONFIG.model, tokenizer, max_positions=positions, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tasks


def _walk(session: Any, template: PromptTemplate) -> list[str]:
    """Returns the prompts of a game that cycles through the admissible actions."""
    first = now = session.reset()
    turns: list[Turn] = []
    texts = [template.render(first, turns, now)]
    while not now.done and len(turns) < CONFIG.env.max_steps:
        action = now.admissible_actions[(7 * len(turns)) % len(now.admissible_actions)]
        turns.append(Turn(observation=now.observation, action=action, admissible=True))
        now = session.step(action)
        texts.append(template.render(first, turns, now) + f"<think></think><action>{action}</action>")
    return texts


async def _play(model: Path, redis_url: str, env_url: str, tasks: Sequence[str]) -> tuple[list[Episode], float]:
    """Returns all episodes of the measured groups, and the seconds from their issue to the last commit."""
    from envservice.client.client import EnvClient
    from rollout.actor import UNPUBLISHED
    from rollout.engine.engine import Engine
    from rollout.episode import EpisodeRunner, Limits
    from rollout.prompt_renderer import load_text
    from rollout.weights.receiver import HostReceiver
    from rollout.worker import RolloutWorker

    store = Store(redis_url, CONFIG.name)
    packed = await asyncio.to_thread(pack_folder, model, CONFIG.model.dtype)
    rollout = CONFIG.rollout
    engine = Engine(model, UNPUBLISHED, config=rollout, dtype=CONFIG.model.dtype)

    async def fetch(_version: Version, _folder: str) -> Packed:
        return packed

    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        await engine.start()
        client = await stack.enter_async_context(EnvClient([env_url]))
        text = load_text(str(model), CONFIG.env)
        limits = Limits(prompt_tokens=rollout.max_prompt_tokens, response_tokens=rollout.max_response_tokens,
                        reward_scale=CONFIG.env.reward_scale)  # fmt: skip
        runner = EpisodeRunner(worker="bench", engine=engine, env=client, env_engine="own", text=text, limits=limits)
        worker = RolloutWorker("bench", store=store, engine=engine, runner=runner, settings=rollout,
                               weights=HostReceiver(engine, fetch, seconds=rollout.update_seconds))
        working = asyncio.create_task(worker.run())
        stack.callback(working.cancel)
        _publish(store, packed)
        warm = _issue(store, tasks[:_WARM_GROUPS], first=0)
        await asyncio.wait_for(_ready(store, warm, working), _DEADLINE_S)
        started = time.monotonic()
        groups = _issue(store, tasks, first=len(warm))
        await asyncio.wait_for(_ready(store, warm + groups, working), _DEADLINE_S)
        seconds = time.monotonic() - started
    return [episode for group in groups for episode in store.episodes(group)], seconds


def _publish(store: Store, packed: Packed) -> None:
    lease = store.leases.acquire("learner", "bench", ttl_s=_DEADLINE_S)
    version = Version(incarnation=store.state.incarnation(lease), step=0, digest=packed.digest)
    store.state.publish_version(lease, version, "")


def _issue(store: Store, tasks: Sequence[str], *, first: int) -> list[str]:
    lease = store.leases.acquire("controller", "bench", ttl_s=_DEADLINE_S)
    groups = [f"train/{first + index}" for index in range(len(tasks))]
    for group, task in zip(groups, tasks, strict=True):
        tickets = [
            Ticket(group=group, k=k, size=_GROUP, task=task, seed=seed_for(0, group, k), kind="train",
                   temperature=1.0, max_steps=CONFIG.env.max_steps)
            for k in range(_GROUP)
        ]  # fmt: skip
        store.issue(lease, tickets, capacity=first + len(tasks))
    return groups


async def _ready(store: Store, groups: Sequence[str], working: asyncio.Task[None]) -> None:
    while len(await asyncio.to_thread(store.ready, "train")) < len(groups):
        if working.done():
            working.result()
        await asyncio.sleep(0.05)


def _generate(model: Path, rows: Sequence[Step]) -> float:
    """Returns the seconds of LLM.generate for the same prompts, each with as many tokens as the worker sampled."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    rollout = CONFIG.rollout
    length = rollout.row_tokens
    llm = LLM(
        model=str(model), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=length,
        max_num_seqs=rollout.slots, enable_chunked_prefill=False, max_num_batched_tokens=4096, block_size=32,
        kv_cache_memory_bytes=int(rollout.kv_cache_gb * GIB), logprobs_mode="processed_logprobs",
    )  # fmt: skip
    prompts = [TokensPrompt(prompt_token_ids=row.prompt_ids.tolist()) for row in rows]
    params = [
        SamplingParams(temperature=1.0, seed=index, max_tokens=len(row.response_ids), ignore_eos=True, logprobs=0,
                       detokenize=False)
        for index, row in enumerate(rows)
    ]  # fmt: skip
    warm = 2 * rollout.slots
    llm.generate(prompts[:warm], params[:warm], use_tqdm=False)
    llm.reset_prefix_cache()
    started = time.monotonic()
    llm.generate(prompts, params, use_tqdm=False)
    return time.monotonic() - started
