"""The process that runs vLLM for one Engine (engine.py), and the worker's calls to it. The worker imports no vLLM.

The process is `python -m rollout.engine.process FD`, with a socket FD to the worker. It imports vLLM once, on CPUs also
for vLLM's EngineCore, which is a fork of it. A fork of the worker would copy the worker's threads, and a new process
would import everything again: ten seconds of a core, and as much memory.

It reads the arguments of the engine, answers [0, 0.0] when the engine is ready, and then serves calls:

    [number, method, arguments]     the worker calls, and is answered [number, result, error]
    [number, "cancel", {}]          the worker no longer waits for this answer
    [0, "shutdown", {}]             the worker no longer needs the engine
    [0, share]                      tells the worker after engine steps which share of the KV blocks requests hold

It ends when the worker or vLLM's EngineCore has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from services.process.child_processes import end_with_parent, wait_or_kill
from services.tokenizer import load_tokenizer

END_S = 20.0
"""Seconds that the process has to end by itself."""
LOOK_S = 0.5
"""Seconds between two checks that EngineCore lives. After its end vLLM fails requests, but its other calls hang."""
REPORT_S = 0.05
"""Least seconds between two reports of the share of KV blocks. A share of 0 is reported at once."""
SHUTDOWN = "shutdown"
CANCEL = "cancel"
_HEAD = 4
"""Bytes of the length of a message, big-endian."""


class Stream:
    """One end of a pair of connected sockets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Stream:
        """Returns a stream that owns the socket, in the running loop."""
        return cls(*await asyncio.open_connection(sock=end))

    async def read(self) -> list[Any] | None:
        """Returns the next message; None if the other side has ended."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD), "big")
            return msgspec.msgpack.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def send(self, message: list[Any]) -> None:
        """Sends a message. It is lost if the other side has ended, which `read` shows by None."""
        body = msgspec.msgpack.encode(message)
        self._writer.write(len(body).to_bytes(_HEAD, "big") + body)

    def close(self) -> None:
        """Closes the socket."""
        self._writer.close()


class VllmEnded(Exception):
    """The vLLM process has ended."""


class VllmClient:
    """The worker's side: a vLLM process and the calls to it."""

    def __init__(self, process: subprocess.Popen[bytes], stream: Stream, stepped: Callable[[float], object]) -> None:
        """Use `start` to make one. `stepped` is called with the share of KV blocks in use while the engine works."""
        self.ended = asyncio.Event()
        """Set once the process has ended."""
        self._process = process
        self._stream = stream
        self._stepped = stepped
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, arguments: Mapping[str, Any], *, environ: Mapping[str, str], output: int,
                    stepped: Callable[[float], object]) -> VllmClient:
        """Starts the process and waits until its engine is ready. Its output goes to the file descriptor `output`.

        `arguments`: the fields of vLLM's AsyncEngineArgs. Raises VllmEnded if the process ends first.
        """
        process, end = _start_process(environ, output)
        made = cls(process, await Stream.over(end), stepped)
        ready = made._expect(0)
        made._stream.send([dict(arguments)])
        try:
            await ready
        except BaseException:
            process.terminate()  # it reads our messages only once it has loaded
            await made.close()
            raise
        return made

    async def call(self, method: str, /, **values: Any) -> Any:
        """Calls a method of vLLM's AsyncLLM, or `generate` of VllmProcess. A cancelled call is cancelled there too.

        Raises RuntimeError with its error, and VllmEnded.
        """
        self._number += 1
        number, answer = self._number, self._expect(self._number)
        self._stream.send([number, method, values])
        try:
            return await answer
        except asyncio.CancelledError:
            self._calls.pop(number, None)  # a call that is cancelled there may never be answered
            self._stream.send([number, CANCEL, {}])
            raise

    async def close(self) -> None:
        """Ends the process."""
        self._stream.send([0, SHUTDOWN, {}])
        await asyncio.to_thread(wait_or_kill, self._process, END_S)
        await self._reading
        self._stream.close()

    def _expect(self, number: int) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        if self.ended.is_set():
            answer.set_exception(VllmEnded())
        else:
            self._calls[number] = answer
        return answer

    async def _read(self) -> None:
        while (message := await self._stream.read()) is not None:
            if message[0] == 0:
                self._stepped(message[1])
            answer = self._calls.pop(message[0], None)
            if answer is None or answer.done():
                continue
            if message[0] and message[2]:
                answer.set_exception(RuntimeError(message[2]))
            else:
                answer.set_result(message[1])
        self.ended.set()
        while self._calls:
            _, answer = self._calls.popitem()
            if not answer.done():
                answer.set_exception(VllmEnded())


def _start_process(environ: Mapping[str, str], output: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the process. Returns it with the worker's end of the socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        return subprocess.Popen(
            [sys.executable, "-m", "rollout.engine.process", str(theirs.fileno())], env=dict(environ),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
            start_new_session=True), ours  # a Ctrl-C in the terminal ends the worker, and the worker ends it


class VllmProcess:
    """The process's side: serves the calls of one worker."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._llm: Any = None
        self._model = ""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._reported = 0.0

    async def run(self) -> None:
        """Works until the worker sends SHUTDOWN or has ended."""
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
        if not share or now - self._reported > REPORT_S:
            self._reported = now
            self._stream.send([0, share])

    async def _end_with_core(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM has no event for it
            await asyncio.sleep(LOOK_S)
        os._exit(1)

    async def _answer(self, number: int, method: str, values: dict[str, Any]) -> None:
        try:
            call = self._generate if method == "generate" else getattr(self._llm, method)
            self._stream.send([number, await call(**values), ""])
        except Exception as error:  # the worker decides what it means
            self._stream.send([number, None, repr(error)])

    async def _generate(self, *, prompt_ids: list[int], request_id: str, stop: list[str],
                        **values: Any) -> dict[str, Any]:
        """Returns ids, logprobs, spans (version, start, end) and finish reason of one response; of an aborted one only
        the reason. With prompt_logprobs=0 also the logprobs of the prompt's tokens but the first.

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


def kv_listener(report: Callable[[float], object]) -> Any:
    """Returns an entry for `stat_loggers` that calls `report` with the share of KV blocks that requests hold.

    vLLM's own statistics have a hundred metrics and cost some microseconds per token. The entry is a subclass of vLLM's
    Prometheus logger, because vLLM adds that logger to any list without one.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class KvListener(PrometheusStatLogger):
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                report(scheduler_stats.kv_cache_usage)

        def record_sleep_state(self, *_: Any, **__: Any) -> None:
            pass

        def log_engine_initialized(self) -> None:
            pass

    return KvListener


async def _serve(end: socket.socket) -> None:
    await VllmProcess(await Stream.over(end)).run()


def main(descriptor: int) -> None:
    """Serves the worker at the other end of the socket."""
    # setproctitle looks for its place next to the first environment variable, which must not have been set again before
    # the import. SPT_NOENV may be the first: a worker's variables have another order at each start.
    import setproctitle

    # With SPT_NOENV a title does not overwrite the variables in /proc, by which the guard finds this process.
    os.environ.setdefault("SPT_NOENV", "1")
    setproctitle.getproctitle()
    end = socket.socket(fileno=descriptor)
    os.register_at_fork(after_in_child=end.close)  # else EngineCore would keep the socket open after this process
    # EngineCore, a fork, ends with this process by itself: its guard may be killed at the same time.
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
