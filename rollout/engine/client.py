"""The worker's side of its vLLM process: starts it, calls it and ends it (process.py). Imports no vLLM."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rollout.engine.process import CANCEL, SHUTDOWN
from rollout.engine.stream import Stream
from services.process.child_processes import wait_or_kill

END_S = 20.0
"""Time that the process has to end by itself."""


class VllmEnded(Exception):
    """The vLLM process has ended."""


class VllmClient:
    """A vLLM process and the calls to it."""

    def __init__(self, process: subprocess.Popen[bytes], stream: Stream, stepped: Callable[[float], object]) -> None:
        """`stepped` is called with the share of KV blocks in use while the engine works. Use `start` instead."""
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
        """Starts the process and waits until its engine is ready. It prints into the file descriptor `output`.

        `arguments`: the fields of vLLM's AsyncEngineArgs. Raises VllmEnded.
        """
        process, end = _started(environ, output)
        made = cls(process, await Stream.over(end), stepped)
        ready = made._expect(0)
        made._stream.send([dict(arguments)])
        try:
            await ready
        except BaseException:
            process.terminate()  # it hears us only once it has loaded
            await made.close()
            raise
        return made

    async def call(self, method: str, /, **values: Any) -> Any:
        """Calls a method of vLLM's AsyncLLM, or `generate` of process.py. A cancelled call is cancelled there too.

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


def _started(environ: Mapping[str, str], output: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Returns a new process and the worker's end of the socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        return subprocess.Popen(
            [sys.executable, "-m", "rollout.engine.process", str(theirs.fileno())], env=dict(environ),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
            start_new_session=True), ours  # a Ctrl-C in the terminal ends the worker, and the worker ends it
