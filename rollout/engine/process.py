"""The process that runs vLLM for one Engine (engine.py): `python -m rollout.engine.process FD`, with a socket FD to it.

It imports vLLM once, on CPUs also for vLLM's EngineCore, which is a fork of it. A fork of the worker would copy the
worker's threads, and a new process would import everything again: ten seconds of a core, and as much memory.

It reads the arguments of the engine, answers [0, 0.0] when the engine is ready, and then serves calls:

    [number, method, arguments]     the worker calls, and is answered [number, result, error]
    [number, "cancel", {}]          the worker waits no more for this answer
    [0, "shutdown", {}]             the worker needs the engine no more
    [0, share]                      tells the worker after engine steps how many of the KV blocks requests hold

It ends when the worker or vLLM's EngineCore has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
import traceback
from functools import partial
from typing import Any

from rollout.engine.stream import Stream
from services.process.death_signal import end_with_parent
from services.tokenizer import load_tokenizer

LOOK_S = 0.5
"""Between two looks whether EngineCore lives. vLLM ends requests then, and lets its other calls wait."""
TELL_S = 0.05
"""Between two reports of the share of KV blocks, unless none are in use any more."""
SHUTDOWN = "shutdown"
CANCEL = "cancel"


class VllmProcess:
    """Serves the calls of one worker."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._llm: Any = None
        self._model = ""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._told = 0.0

    async def run(self) -> None:
        """Works until the worker says that it is enough, or has ended."""
        arguments = await self._stream.read()
        if arguments is None:
            return
        self._llm, self._model = self._build(arguments[0]), arguments[0]["model"]
        watch = asyncio.create_task(self._end_with_core())
        self._stream.send([0, 0.0])
        while (message := await self._stream.read()) is not None:
            number, method, values = message
            if method == SHUTDOWN:
                break
            if method == CANCEL:
                if number in self._calls:
                    self._calls[number].cancel()
                continue
            self._calls[number] = asyncio.create_task(self._answer(number, method, values))
            self._calls[number].add_done_callback(lambda _, number=number: self._calls.pop(number))
        watch.cancel()
        await asyncio.to_thread(self._llm.shutdown)

    def _build(self, arguments: dict[str, Any]) -> Any:
        """Returns the engine. Blocks the loop: a process without other threads is safe to fork."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from rollout.engine.stats import kv_listener

        config = AsyncEngineArgs(**arguments, trust_remote_code=False).create_engine_config()
        if config.device_config.device_type == "cpu":
            # The fork has this process's imports, and shares their memory. vLLM would spawn on CPUs, because its users
            # may have started threads of OpenMP; here nothing has computed yet.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        llm = AsyncLLM.from_vllm_config(config, stat_loggers=[kv_listener(self._stepped)])
        llm.log_stats = False  # a listener turns on statistics of each token, which nobody needs
        return llm

    def _stepped(self, share: float) -> None:
        now = time.monotonic()
        if not share or now - self._told > TELL_S:
            self._told = now
            self._stream.send([0, share])

    async def _end_with_core(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(LOOK_S)
        os._exit(1)

    async def _answer(self, number: int, method: str, values: dict[str, Any]) -> None:
        try:
            call = self._generate if method == "generate" else getattr(self._llm, method)
            self._stream.send([number, await call(**values), ""])
        except Exception as error:  # the worker judges it
            self._stream.send([number, None, repr(error)])

    async def _generate(self, *, prompt_ids: list[int], request_id: str, stop: list[str],
                        **values: Any) -> dict[str, Any]:
        """Returns ids, logprobs, spans (version, start, end) and the reason of the end, of one response. With
        prompt_logprobs=0 also those of the prompt's tokens but the first.

        `stop`: texts that end it. The token that completes one is the last, whatever text it has behind it.
        """
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        processor = self._llm.output_processor
        if stop and processor.tokenizer is None:  # answers are decoded only where a text may end them
            processor.tokenizer = load_tokenizer(self._model)
        params = SamplingParams(
            **values, stop=stop, include_stop_str_in_output=True, logprobs=0, detokenize=bool(stop),
            output_kind=RequestOutputKind.FINAL_ONLY, skip_clone=True)
        final, prompt = None, None
        async for output in self._llm.generate(tokens_input(prompt_ids), params, request_id):
            final, prompt = output.outputs[0], output.prompt_logprobs
        if final is None or final.finish_reason not in ("stop", "length"):
            return {"finished": final and final.finish_reason}
        ids = list(final.token_ids)
        read = zip(prompt[1:], prompt_ids[1:], strict=True) if prompt else ()
        return {
            "finished": final.finish_reason, "ids": ids,
            "prompt_logprobs": [row[i].logprob for row, i in read],
            "logprobs": [row[i].logprob for row, i in zip(final.logprobs, ids, strict=True)],
            "spans": [(span.version, span.start, span.end) for span in final.weight_versions]}


async def _serve(end: socket.socket) -> None:
    await VllmProcess(await Stream.over(end)).run()


def main(descriptor: int) -> None:
    """Serves the worker at the other end of the socket."""
    # It finds the place of the title beside the first variable, which must not have been set again by then: the order
    # of a worker's variables differs from start to start, and sometimes EngineCore had no name.
    import setproctitle

    os.environ["SPT_NOENV"] = "1"  # a title leaves the variables in /proc as they are, by which the guard knows us
    setproctitle.getproctitle()
    end = socket.socket(fileno=descriptor)
    os.register_at_fork(after_in_child=end.close)  # so that the worker sees the end of this process alone
    # A fork, EngineCore, ends when this process is gone: its guard may be killed at the same time.
    os.register_at_fork(after_in_child=partial(end_with_parent, signal.SIGKILL))
    status = 1
    try:
        asyncio.run(_serve(end))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)  # threads of vLLM would keep the process for a while


if __name__ == "__main__":
    main(int(sys.argv[1]))
