"""The Ray actor of a rollout worker: it makes the parts that the config asks for, and runs the worker."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from rollout.gpu_turns import GpuTurns
from services.config.env import EnvSection
from services.config.tree import Config
from services.errors import in_short
from services.files import check_seen
from services.process.packages import check_one_installation
from services.process.rendezvous import use_interface
from services.records import Version
from services.store.gpu_lease import GpuLease
from services.telemetry.heartbeat import BEAT_S, NO_SERVERS, Beating, Heartbeat
from services.telemetry.logs import get_logger, life_of
from services.weights.channel import WeightReceiver
from services.weights.checksum import digest_like
from services.weights.pack import Packed, pack_folder
from services.weights.registry import Participant

if TYPE_CHECKING:
    from envservice.client.client import EnvClient
    from envservice.wire import Info
    from rollout.engine.engine import Engine
    from rollout.episode import EpisodeRunner, Limits
    from rollout.judge import Corrector
    from rollout.prompt_renderer import PromptRenderer
    from rollout.worker import RolloutWorker
    from services.store.store import Store

UNPUBLISHED = Version(incarnation=-1, step=0)
"""Version of the engine before its first update. No ticket may be played with these weights."""
log = get_logger("host")


class RolloutHost:
    """One rollout worker in its own process: RolloutActor without Ray's decorator."""

    def __init__(  # noqa: PLR0913 - a new process needs all of it
        self, *, config_json: str, run: str, worker: str, store_url: str, env_urls: list[str], model_path: str,
        weights_actor_name: str, folder: str, env_token: str | None = None, shared_gpu: int = 0,
    ) -> None:
        """`folder`: the run's folder, for the log. `env_token`: bearer token of the environment servers. `shared_gpu`:
        number of the learner rank that the worker shares its GPU with."""
        self._config = Config.model_validate_json(config_json)
        self._run = run
        self._worker = worker
        self._store_url = store_url
        self._env_urls = env_urls
        self._env_token = env_token
        self._model = Path(model_path)
        self._weights_actor_name = weights_actor_name
        self._shared_gpu = shared_gpu
        self._folder = Path(folder)
        self._worker_loop: RolloutWorker | None = None
        self._drains = False

    async def run(self) -> None:
        """Works until it is drained or killed. Raises the Fault or UserError that ended the worker."""
        check_one_installation()
        with life_of(self._worker, self._folder, node=ray.util.get_node_ip_address()) as log:
            await self._work(log)

    async def drain(self) -> None:
        """Lets the worker finish its episodes and take no more, also while it still starts."""
        self._drains = True
        if self._worker_loop is not None:
            self._worker_loop.drain()

    async def _work(self, log: Any) -> None:
        from envservice.client.client import EnvClient
        from rollout.episode import MixedRunner
        from rollout.worker import RolloutWorker
        from services.store.store import Store

        check_seen(self._model)
        env, rollout = self._config.env, self._config.rollout
        engine, store = self._engine(), Store.of_run(self._config, self._store_url, self._run)
        async with AsyncExitStack() as stack:
            gpu_turns = await self._gpu_turns(store, stack)
            stack.push_async_callback(engine.close)
            started = time.monotonic()
            _, texts = await asyncio.gather(engine.start(), asyncio.to_thread(self._texts))
            log.info("engine ready", seconds=time.monotonic() - started)
            urls = await asyncio.to_thread(store.state.servers) or self._env_urls  # they may have moved while it loaded
            client = await stack.enter_async_context(
                EnvClient(urls, self._env_token, timeout_s=env.call_seconds, outage_s=env.outage_seconds))
            info = await engine.while_alive(self._environment(client, store))
            runners: dict[str, EpisodeRunner] = {
                entry.name: self._runner(entry, text, client, info, engine=engine, store=store)
                for entry, text in zip(env.entries, texts, strict=True)}
            runner = MixedRunner(settings=env, runners=runners) if env.more else runners[env.name]
            if self._config.agent.name is not None:
                from rollout.agents.worker_endpoint import agent_runner

                runner = await stack.enter_async_context(agent_runner(
                    self._config.agent, self._shared(env, texts[0], client, info, engine), self._model, env=env.name,
                    slots=rollout.slots))
            await engine.while_alive(self._begun(RolloutWorker(
                self._worker, store=store, engine=engine, runner=runner, weights=self._receiver(engine),
                settings=rollout, gpu_turns=gpu_turns)).run())

    def _texts(self) -> list[PromptRenderer]:
        """Loads the renderer of each environment, one after the other: transformers cannot be imported by two threads
        at once."""
        from rollout.prompt_renderer import load_text

        return [load_text(str(self._model), entry, self._config.model) for entry in self._config.env.entries]

    def _shared(self, env: EnvSection, text: PromptRenderer, client: EnvClient, info: Info,
                engine: Engine) -> dict[str, Any]:
        """Returns the arguments that EpisodeRunner and AgentRunner have in common, for one environment."""
        from rollout.episode import Limits

        rollout = self._config.rollout
        limits = Limits(prompt_tokens=rollout.max_prompt_tokens, response_tokens=rollout.max_response_tokens,
                        reward_scale=env.reward_scale)
        return {"worker": self._worker, "engine": engine, "env": client, "text": text, "limits": limits,
                "env_engine": f"{info.engine} {info.version}"}

    def _runner(self, env: EnvSection, text: PromptRenderer, client: EnvClient, info: Info, *, engine: Engine,
                store: Store) -> EpisodeRunner:
        """Returns the runner that plays the episodes of one environment by its prompt."""
        from rollout.episode import EpisodeRunner
        from rollout.judge import Judge

        shared, settings = self._shared(env, text, client, info, engine), self._config.learner.judge
        judge = Judge(engine=engine, text=text, settings=settings, limits=shared["limits"],
                      corrector=self._corrector(store, engine, text, shared["limits"]))
        return EpisodeRunner(**shared, replayable=info.replay != "live", judge=judge if settings.questions else None)

    def _corrector(self, store: Store, engine: Engine, text: PromptRenderer, limits: Limits) -> Corrector | None:
        if not self._config.learner.judge.correction:
            return None
        from rollout.judge import Corrector
        from rollout.store_calls import StoreCalls

        keep = partial(StoreCalls(store.longest_s).for_episode, store.state.correct)
        return Corrector(engine=engine, text=text, limits=limits, keep=keep)

    def _engine(self) -> Engine:
        from rollout.engine.engine import Engine

        if self._config.rollout.gpus:  # before NCCL chooses, which it does once per process
            use_interface(ray.util.get_node_ip_address())
        return Engine(self._model, UNPUBLISHED, config=self._config.rollout, dtype=self._config.model.dtype,
                      seed=self._config.seed, load=False)

    def _begun(self, worker: RolloutWorker) -> RolloutWorker:
        """Stores the worker, and drains it if `drain` was called before."""
        self._worker_loop = worker
        if self._drains:
            worker.drain()
        return worker

    async def _gpu_turns(self, store: Store, stack: AsyncExitStack) -> GpuTurns | None:
        """Waits for the turn on a GPU that is shared, before the engine fills it. The end of the stack gives it up."""
        if not self._config.rollout.sleep:
            return None
        turns = GpuTurns(GpuLease(store, self._worker, self._shared_gpu), wait_s=self._config.learner.wait_s)
        stack.push_async_callback(turns.give)
        await turns.take()
        return turns

    def _receiver(self, engine: Engine) -> WeightReceiver:
        from rollout.weights.receiver import GpuReceiver, HostReceiver

        host = HostReceiver(engine, self._fetch, seconds=self._config.rollout.update_seconds)
        if self._config.transfer == "host":
            return host
        member = Participant(worker=self._worker, processes=self._config.rollout.tensor_parallel,
                             shared_gpu=self._shared_gpu)
        return GpuReceiver(engine, host, member, self._ask, address=ray.util.get_node_ip_address())

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the weights actor. Returns None if the actor is lost, since Ray creates it again, and with
        a warning if the method fails."""
        actor: Any = await asyncio.to_thread(ray.get_actor, self._weights_actor_name)
        try:
            return await getattr(actor, method).remote(*arguments)
        except RayTaskError as error:
            log.warning("the weights actor failed", method=method, reason=in_short(error.cause))
            return None
        except RayError:
            return None

    async def _environment(self, client: EnvClient, store: Store) -> Info:
        """Asks what the environment servers play. While none answers, heartbeats report that the worker waits for them,
        and it also asks servers that the store names meanwhile."""
        asking = asyncio.create_task(client.info())
        await asyncio.wait([asking], timeout=BEAT_S)
        if not asking.done():
            heartbeat = Heartbeat(self._worker, "rollout")
            heartbeat.doing(NO_SERVERS)
            with Beating(heartbeat, store.state.beat):
                while not asking.done():
                    if urls := await asyncio.to_thread(store.state.servers):
                        client.use(urls)
                    await asyncio.wait([asking], timeout=BEAT_S)
        return asking.result()

    async def _fetch(self, version: Version, folder: str) -> Packed | None:
        """Gets weights from the weights actor. If it no longer has them, reads the export that the pointer names."""
        published = await self._published(version)
        if published is not None:
            return published
        if not folder or not await asyncio.to_thread(Path(folder).is_dir):  # storage that this machine may lack
            return None
        exported = await asyncio.to_thread(pack_folder, Path(folder), self._config.model.dtype)
        digest = await asyncio.to_thread(digest_like, version.digest, exported.manifest, exported.buffer)
        return exported if digest == version.digest else None

    async def _published(self, version: Version) -> Packed | None:
        export = await self._ask("fetch", version)
        if export is None:  # the actor does not have it, or was lost with its node and is created again, empty
            return None
        try:
            buffer = await export.refs[0]
        except RayError:
            return None
        return Packed(manifest=export.manifest, buffer=buffer, digest=version.digest)


RolloutActor = ray.remote(max_restarts=0)(RolloutHost)
