"""The Ray shell of the rollout worker: wires one from a config and runs it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from services.config.tree import Config
from services.process.packages import check_one_installation
from services.process.shared_storage import check_seen
from services.records import Version
from services.telemetry.logs import life_of
from services.telemetry.tracing import tracing
from services.weights.folder import pack_folder
from services.weights.pack import Packed

ENV_SECONDS = 120.0
"""A call's budget with all its retries: long enough for a killed environment server to come back."""
UNPUBLISHED = Version(incarnation=-1, step=0)
"""What the engine holds before its first update: weights that no ticket may be played with."""


class RolloutHost:
    """One rollout worker in a process of its own: RolloutActor without Ray's decorator."""

    def __init__(  # noqa: PLR0913 - all that a process of its own has to be told
        self, *, config_json: str, run: str, worker: str, store_url: str, env_urls: list[str], model_path: str,
        weights_actor_name: str, folder: str, env_token: str | None = None,
    ) -> None:
        """`folder`: the run's, whose log this process writes to. `env_token`: what the environment servers ask for."""
        self._config = Config.model_validate_json(config_json)
        self._run = run
        self._worker = worker
        self._store_url = store_url
        self._env_urls = env_urls
        self._env_token = env_token
        self._model = Path(model_path)
        self._weights_actor_name = weights_actor_name
        self._folder = Path(folder)

    async def run(self) -> None:
        """Lives until killed. Raises the Fault that ended the worker."""
        check_one_installation()
        with life_of(self._worker, self._folder) as log:
            await self._work(log)

    async def _work(self, log: Any) -> None:
        from envservice.client.client import EnvClient
        from rollout.engine import Engine
        from rollout.episode import EpisodeRunner, Limits
        from rollout.prompt_renderer import load_text
        from rollout.worker import RolloutWorker
        from services.store.store import Store

        check_seen(self._model)
        env, rollout = self._config.env, self._config.rollout
        engine = Engine(
            self._model, UNPUBLISHED, config=rollout, dtype=self._config.model.dtype, seed=self._config.seed)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            started = time.monotonic()
            await engine.start()
            log.info("engine ready", seconds=time.monotonic() - started)
            # After the engine, whose process shall inherit none of it.
            stack.enter_context(tracing(self._config.metrics.traces, process=self._worker, run=self._run))
            text = await asyncio.to_thread(load_text, str(self._model), env)
            client = await stack.enter_async_context(
                EnvClient(self._env_urls, self._env_token, timeout_s=ENV_SECONDS))
            info = await client.info()
            limits = Limits(
                prompt_tokens=rollout.max_prompt_tokens, response_tokens=rollout.max_response_tokens,
                reward_scale=env.reward_scale)
            player = EpisodeRunner(
                worker=self._worker, engine=engine, env=client, env_engine=f"{info.engine} {info.version}", text=text,
                limits=limits)
            worker = RolloutWorker(
                self._worker, store=Store(self._store_url, self._run, settings=self._config.redis), engine=engine,
                player=player, fetch=self._fetch, settings=rollout)
            await worker.run()

    async def _fetch(self, version: Version, folder: str) -> Packed | None:
        """From the weights actor; where it has them no more, from the export that the pointer names."""
        published = await self._published(version)
        if published is not None:
            return published
        if not folder:
            return None
        exported = await asyncio.to_thread(pack_folder, Path(folder), self._config.model.dtype)
        return exported if exported.digest == version.digest else None

    async def _published(self, version: Version) -> Packed | None:
        actor: Any = await asyncio.to_thread(ray.get_actor, self._weights_actor_name)
        try:
            found = await actor.fetch.remote(version)
            if found is None:
                return None
            buffer = await found.refs[0]
        except RayError:
            # The actor was lost with its node and is being made anew, empty: the export stands in.
            return None
        return Packed(manifest=found.manifest, buffer=buffer, digest=version.digest)


RolloutActor = ray.remote(max_restarts=0)(RolloutHost)
