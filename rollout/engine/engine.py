"""The sampler: vLLM's AsyncLLM behind start, sample and update. It runs in a process of its own (process.py), so that
the worker's process imports no vLLM.

An update, under one deadline:

    check ▸ the digest, while requests continue      file ▸ one per machine, which vLLM maps. `swap` needs none: its
                                                     version came from GPU to GPU (rollout/weights/receiver.py)
    pause(keep) ▸ requests freeze, KV is dropped     load ▸ weights replaced in place
    reset the prefix cache                           resume ▸ frozen requests recompute their KV under the new weights
    probe ▸ the canary (services/weights/canary.py)  release samples that finished meanwhile

Samples that finish during an update are held back until its probe has passed, so that no sample of wrong weights leaves
the engine. If the canary fails, the engine holds all samples back until another update is right, and samples again
those that the wrong weights may have sampled. After any other error the engine cannot be used again: the worker exits,
and others claim its tickets.

Not used, because each was measured to be silently wrong or fatal with vLLM 0.32 on CPU: updates without a pause,
`raw_logprobs` (they ignore the temperature), chunked prefill (a seeded request whose prompt is split ends the process).
Settings for CPUs only are in settings.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rollout.engine.process import VllmClient
from rollout.engine.sample import Sample, sample_of
from rollout.engine.settings import engine_arguments, engine_environment, gpu_bytes, kv_bytes, prepare_environment
from rollout.engine.weights_file import loaded_from_file
from services.config.tree import RolloutSection
from services.errors import EngineFault, UserError, WrongWeights
from services.process.guard import HeldFolder, ProcessGuard, end_all, short_root
from services.records import Version
from services.telemetry.logs import get_logger
from services.weights.canary import ANSWER, PROMPTS, Canary, CanaryCheck, Played
from services.weights.headers import folder_parameters
from services.weights.pack import ITEM_SIZES, Manifest

TAIL_BYTES = 64 * 1024
_ERROR = re.compile(
    r"(?:^|[\s\]])((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?:: .*)?$|Value error, .*?(?= \[type=))")
"""An exception, or pydantic's line about one in a check of vLLM's arguments, which follows "1 validation error for"."""
_UNINFORMATIVE = ("EngineDeadError", "Engine core initialization failed", "EngineCore encountered an issue",
          "validation error for", "failed to be inspected")


class EngineOutput:
    """A file without a name that the engine's process has as its stdout and stderr."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="gagpo-engine-")  # noqa: SIM115 - it lives as long as the engine

    @property
    def descriptor(self) -> int:
        """File descriptor of the file, for the stdout and stderr of a child process."""
        return self._file.fileno()

    def text(self) -> str:
        """Returns the end of the output so far."""
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")

    def last_error(self) -> str | None:
        """Returns the last printed exception that has a useful message, without the logger's prefix."""
        matches = (_ERROR.search(line.rstrip()) for line in reversed(self.text().splitlines()))
        return next((match[1] for match in matches
                     if match and not any(text in match[0] for text in _UNINFORMATIVE)), None)


EXTEND_S = 1.0
"""Least seconds between two extensions of the requests' deadlines. Extending them at every step would cost more."""
Arguments = contextlib.AbstractContextManager[tuple[Any, ...]]
T = TypeVar("T")
log = get_logger("engine")


class Engine:
    """One vLLM engine and the version that it holds.

    `path`: a Hugging Face folder, whose weights count as `version` until the first update. Without `load` they are not
    read, and the engine starts with random weights.
    """

    def __init__(self, path: Path, version: Version, *, config: RolloutSection, dtype: str, seed: int = 0,
                 load: bool = True) -> None:
        self.version = version
        self.listener: Callable[[int, int, float], object] = lambda *_: None
        """Called for each answer with the tokens of prompt and response, and its seconds, waiting included."""
        self.paused_seconds = 0.0
        """Seconds for which the last update paused the requests."""
        self.kv_used = 0.0
        """Share of the KV cache's blocks that requests hold."""
        self._path = path
        self._config = config
        self._dtype = "float32" if config.exact else dtype
        self._seed = seed
        self._load_weights = load
        self._names = {version.name: version}
        self._llm: VllmClient | None = None
        self._fault: EngineFault | None = None
        self._slots = asyncio.Semaphore(1 if config.exact else max(config.slots, 1))
        self._updating = asyncio.Lock()
        self._update: asyncio.Task[None] | None = None
        self._output: EngineOutput | None = None
        self._folder: HeldFolder | None = None
        self._guard_process: ProcessGuard | None = None
        self._watch: asyncio.Task[None] | None = None
        self._guarded: set[asyncio.Timeout] = set()
        self._waiting: set[asyncio.Timeout] = set()
        self._extended = 0.0
        self._canaries = CanaryCheck()
        self._wrong = 0
        """Number of updates whose canary failed."""
        self._right = True
        """Whether the weights are right, as far as is known: the last canary did not fail."""
        self._released = asyncio.Event()
        self._released.set()

    @property
    def paused(self) -> bool:
        """Whether it answers no request, because it loads new weights, holds wrong ones or sleeps."""
        return not self._released.is_set()

    async def start(self) -> None:
        """Loads the model. Raises EngineFault, also if this takes longer than rollout.start_seconds, and UserError if
        rollout.gpu_memory has no room for it."""
        prepare_environment(self._config)
        async with self._guard("start", "start_seconds"):
            self._llm = await self._build()
            self._watch = asyncio.create_task(self._end_with(self._llm))
            await self._call("update_weight_version", new_version=self.version.name)
            await self._probe(self.version, None)

    async def sample(self, prompt_ids: Sequence[int], *, temperature: float, seed: int, max_tokens: int,
                     stop_token_ids: Sequence[int], request_id: str, stop_texts: Sequence[str] = ()) -> Sample:
        """Samples one response. It ends with a token of `stop_token_ids`, with the token that completes a text of
        `stop_texts`, or after `max_tokens`.

        Waits first for a free slot, and while the engine is `paused`. Raises EngineFault if the engine died or makes no
        step for rollout.sample_seconds.
        """
        self._raise_if_dead()
        started = time.monotonic()
        async with self._slots:
            await self._released.wait()  # an engine that sleeps makes no steps, so no deadline runs
            async with self._guard("sample", "sample_seconds", extended=True):
                while True:
                    wrong = self._wrong
                    sample = sample_of(await self._generate(
                        prompt_ids, request_id, temperature=temperature, seed=seed, max_tokens=max_tokens,
                        stop_token_ids=stop_token_ids, stop_texts=stop_texts), self._names)
                    await self._released.wait()
                    if wrong == self._wrong:  # else wrong weights may have sampled some of it
                        break
        self._raise_if_dead()
        self.listener(len(prompt_ids), len(sample.ids), time.monotonic() - started)
        return sample

    async def update(self, version: Version, manifest: Manifest, buffer: np.ndarray,
                     canary: Canary | None = None) -> None:
        """Loads `version` in place and keeps the requests in flight. After an EngineFault the engine cannot be used.

        `canary`: what the learner computes with this version. If the engine computes something else, raises
        WrongWeights, and holds all samples back until another update is right.
        The update is completed even if the caller is cancelled, because a paused engine would wait for ever.
        """
        await self._update_by(version, canary, "load_packed", loaded_from_file(manifest, buffer, version.digest))

    async def swap(self, version: Version, canary: Canary | None = None) -> None:
        """Like `update`, with a version that the engine's processes have received (rollout/weights/inbox.py)."""
        await self._update_by(version, canary, "load_received", contextlib.nullcontext((version.name,)))

    async def call(self, method: str, **arguments: Any) -> list[Any]:
        """Calls a method of all worker processes between two steps of the engine. After an EngineFault the engine is
        unusable."""
        self._raise_if_dead()
        async with self._guard(method, "update_seconds"):
            return await self._call("collective_rpc", method=method, kwargs=arguments)

    async def _update_by(self, *load: Any) -> None:
        self._raise_if_dead()
        self._update = asyncio.create_task(self._load(*load))
        await asyncio.shield(self._update)

    async def _load(self, version: Version, canary: Canary | None, method: str, arguments: Arguments) -> None:
        async with self._updating, self._guard(f"update to {version.short}", "update_seconds"):
            with contextlib.ExitStack() as stack:
                ready = stack.enter_context  # in a thread: it hashes and writes, or waits for another worker that does
                given = await asyncio.to_thread(ready, arguments)
                self._released.clear()
                self._extend(self._config.update_seconds + self._config.sample_seconds)
                started = time.monotonic()
                await self._call("pause_generation", mode="keep", clear_cache=True)
                await self._call("collective_rpc", method=method, args=given)
            if not await self._call("reset_prefix_cache"):
                raise EngineFault("the prefix cache still holds blocks of the old weights")
            self._names[version.name] = version
            await self._call("update_weight_version", new_version=version.name)
            await self._call("resume_generation")
            self.paused_seconds = time.monotonic() - started
            fault = await self._probe(version, canary)
            self._right = not fault
            if fault:
                self._wrong += 1
                self._extend(None)
            else:
                self.version = version
        if fault:
            raise WrongWeights(fault)
        self._released.set()

    async def sleep(self) -> None:
        """Gives up the memory of weights and KV cache. Requests in flight are kept. Raises EngineFault."""
        self._raise_if_dead()
        async with self._updating, self._guard("sleep", "update_seconds"):
            self._released.clear()
            self._extend(None)
            await self._call("sleep", level=1, mode="keep")  # 1: weights wait in host memory, so no fetch

    async def wake(self) -> None:
        """Takes the memory again; requests recompute their KV under the same weights. Raises EngineFault."""
        self._raise_if_dead()
        async with self._updating, self._guard("wake up", "update_seconds"):
            if not await self._call("wake_up"):
                raise EngineFault("a part of it stays asleep")
            self._extend(self._config.sample_seconds)
        if self._right:
            self._released.set()

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. Cancels it and raises EngineFault if vLLM's process ends first: a wait for
        environment servers, for example, would not notice that."""
        assert self._watch is not None, "the engine has not started"
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, self._watch], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._raise_if_dead()
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Stops the engine's processes and removes their temporary files."""
        if self._watch is not None:
            self._watch.cancel()
        if self._llm is not None:
            llm, self._llm = self._llm, None
            await llm.close()
        if self._folder is not None:
            folder, self._folder = self._folder, None
            await asyncio.to_thread(end_all, str(folder.path))  # EngineCore, if the process that forked it was killed
            await asyncio.to_thread(folder.remove)
        if self._guard_process is not None:
            guard, self._guard_process = self._guard_process, None
            await asyncio.to_thread(guard.release)

    async def _build(self) -> VllmClient:
        self._output = EngineOutput()
        self._folder = await asyncio.to_thread(HeldFolder, "gagpo-engine-", short_root())
        self._guard_process = ProcessGuard(self._folder.path, self._folder.lock)
        return await VllmClient.start(
            await asyncio.to_thread(self._arguments), environ=engine_environment(self._folder.path),
            output=self._output.descriptor, stepped=self._stepped)

    async def _call(self, method: str, /, **values: Any) -> Any:
        assert self._llm is not None, "the engine has not started"
        return await self._llm.call(method, **values)

    def _arguments(self) -> dict[str, Any]:
        weights = folder_parameters(self._path) * ITEM_SIZES[self._dtype]
        return engine_arguments(
            self._path, self._config, dtype=self._dtype, seed=self._seed, load=self._load_weights,
            kv_bytes=kv_bytes(self._config, weight_bytes=weights, gpu_bytes=gpu_bytes(self._config)))

    def _stepped(self, share: float) -> None:
        """Called with each report of engine steps: extends the deadline of every waiting request, at most once per
        EXTEND_S."""
        self.kv_used = share
        if time.monotonic() - self._extended > EXTEND_S and self._released.is_set():
            self._extend(self._config.sample_seconds)

    def _extend(self, seconds: float | None) -> None:
        """Gives every request so many seconds from now; None: no deadline."""
        self._extended = time.monotonic()
        for timeout in self._waiting:
            if not timeout.expired():
                timeout.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    async def _generate(self, prompt_ids: Sequence[int], request_id: str, *, temperature: float = 1.0, seed: int = 0,
                        stop_token_ids: Sequence[int] = (), stop_texts: Sequence[str] = (),
                        **values: int) -> dict[str, Any]:
        """Returns the answer of the vLLM process (process.py)."""
        answer = await self._call(
            "generate", prompt_ids=list(prompt_ids), request_id=request_id, temperature=temperature, seed=seed,
            stop_token_ids=list(stop_token_ids), stop=list(stop_texts), **values)
        if answer["finished"] not in ("stop", "length"):
            raise EngineFault(f"{request_id} ended with {answer['finished']}")
        return answer

    async def _probe(self, version: Version, canary: Canary | None) -> str:
        """Answers the canary's prompts. Returns the fault of the weights, "" if they are right or `canary` is None."""
        name = f"probe/{version.short}"
        answers = await asyncio.gather(*(
            self._generate(prompt, f"{name}/{k}", max_tokens=ANSWER) for k, prompt in enumerate(PROMPTS)))
        again = await asyncio.gather(*(
            self._generate(prompt + answer["ids"], f"{name}/again/{k}", max_tokens=1, prompt_logprobs=0)
            for k, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True))))
        for answer in answers + again:
            if [span[0] for span in answer["spans"]] != [version.name]:
                raise EngineFault(f"the probe was sampled by {answer['spans']}, not by {version.short}")
        parts = [np.split(np.array(answer["prompt_logprobs"]), [len(prompt) - 1])
                 for prompt, answer in zip(PROMPTS, again, strict=True)]
        prompt_logprobs, answer_logprobs = (np.concatenate(part).tolist() for part in zip(*parts, strict=True))
        written = [logprob for answer in answers for logprob in answer["logprobs"]]
        played = Played(logprobs=prompt_logprobs, written=written, read=answer_logprobs)
        if not np.isfinite(prompt_logprobs + answer_logprobs + written).all():
            raise EngineFault(f"version {version.short} has logprobs that are not finite: {played}")
        return "" if canary is None else self._canaries.fault(version, canary, played)

    @contextlib.asynccontextmanager
    async def _guard(self, doing: str, key: str, *, extended: bool = False) -> AsyncIterator[None]:
        """Turns an exception or timeout of the block into an EngineFault, which ends the engine. UserError and
        cancellation pass.

        `key`: the key of the section `rollout` with the timeout. `extended`: each step of the engine starts it again.
        """
        try:
            async with asyncio.timeout(getattr(self._config, key)) as timeout:
                self._guarded.add(timeout)
                if extended:
                    self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._guarded.discard(timeout)
                    self._waiting.discard(timeout)
        except (asyncio.CancelledError, UserError):
            raise
        except Exception as error:
            self._fault = self._fault or EngineFault(f"{doing}: {self._reason(error, key)}")
            self._released.set()  # the waiting samples raise the fault
            raise self._fault from error

    async def _end_with(self, llm: VllmClient) -> None:
        """Ends all waiting calls when vLLM's process is gone, also those that wait in this process."""
        await llm.ended.wait()
        printed = self._output.last_error() if self._output is not None else None
        self._fault = self._fault or EngineFault(f"vLLM's process died ({printed or 'it printed no error'})")
        self._released.set()
        for timeout in self._guarded:
            if not timeout.expired():
                timeout.reschedule(0.0)

    def _reason(self, error: Exception, key: str) -> str:
        """Returns the reason in one line. If the engine's process printed an error, its output goes to the log."""
        printed = self._output.last_error() if self._output is not None else None
        if printed is not None and self._output is not None:
            log.error("the engine printed", text=self._output.text())
        if isinstance(error, TimeoutError):
            return f"no answer in {getattr(self._config, key):.0f} s (rollout.{key})"
        return printed if printed is not None and not isinstance(error, EngineFault) else repr(error)

    def _raise_if_dead(self) -> None:
        if self._fault is not None:
            raise self._fault
