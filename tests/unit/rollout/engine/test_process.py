"""Both sides of the vLLM process, without vLLM: its calls, its last error, and answers that end at a text.

The other side of the client is a socket that never answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from rollout.engine.engine import EngineOutput
from rollout.engine.process import Stream, VllmClient
from rollout.engine.sample import Sample, cut_at
from services.records import Version, VersionSpan

CODE = """
import os, socket
from rollout.engine import process

async def serve(_):
    import setproctitle

    os.environ["FIRST"] = "set again"
    setproctitle.setproctitle("VLLM::EngineCore")
    print(open("/proc/self/cmdline").read().rstrip("\\0"), flush=True)

process._serve = serve
process.main(socket.socketpair()[0].detach())
"""


@pytest.mark.parametrize("first", ["FIRST", "SPT_NOENV"])
def test_engine_core_has_its_name_also_if_the_first_variable_was_set_again(first: str):
    """Operators look for it, and so do tests. The order of a worker's variables differs from start to start."""
    done = subprocess.run([sys.executable, "-c", CODE], env={first: "1", **os.environ}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "VLLM::EngineCore\n"), done.stderr


@pytest.fixture
def process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", ""])


async def test_a_cancelled_call_is_forgotten(process):
    """An engine lives for as long as its run, and each call that an episode's end cancels would stay in memory."""
    ours, theirs = socket.socketpair()
    with theirs:
        client = VllmClient(process, await Stream.over(ours), lambda _: None)
        call = asyncio.create_task(client.call("generate"))
        await asyncio.sleep(0)
        assert client._calls
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not client._calls
    await client.close()

PRINTED = """\
(EngineCore pid=9) INFO 11-22 00:07:27 [core.py:10] starting
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906]   File "cpu_attn.py", line 3, in check
(EngineCore pid=9) ERROR 11-22 00:07:27 [core.py:906] ValueError: Head size 16 is not supported by CPU attention.
(MainProcess pid=8) ERROR 11-22 00:07:27 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_last_error_that_says_something_is_told():
    output = EngineOutput()
    os.write(output.descriptor, PRINTED.encode())
    assert output.last_error() == "ValueError: Head size 16 is not supported by CPU attention."


REFUSED = """\
(MainProcess pid=8) ERROR 11-22 00:07:27 [registry.py:1120] ModuleNotFoundError: No module named 'torchvision'
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, {} [type=value_error, input_value=ArgsKwargs((), {{'model': 'm'}}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


def test_the_last_error_of_vllms_argument_check_is_shown_unless_it_only_points_to_the_log():
    output = EngineOutput()
    os.write(output.descriptor, REFUSED.format("Model architectures ['X'] failed to be inspected.").encode())
    assert output.last_error() == "ModuleNotFoundError: No module named 'torchvision'"
    os.write(output.descriptor, REFUSED.format("max_model_len (200) is greater than 100.").encode())
    assert output.last_error() == "Value error, max_model_len (200) is greater than 100."


def test_a_process_that_prints_into_it_is_heard_also_after_its_end():
    output = EngineOutput()
    code = "import sys; sys.stdin.read(); sys.exit('torch.OutOfMemoryError: tried to allocate 2 GiB')"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output.descriptor,
                               stderr=output.descriptor)
    assert output.last_error() is None
    process.communicate(timeout=60)
    assert output.last_error() == "torch.OutOfMemoryError: tried to allocate 2 GiB"

TOKENIZER = byte_tokenizer()
OLD, NEW = Version(incarnation=1, step=0), Version(incarnation=1, step=1)


def sampled(text: str) -> Sample:
    ids = [*TOKENIZER.encode(text), 1]
    spans = [VersionSpan(version=OLD, start=0, end=4), VersionSpan(version=NEW, start=4, end=len(ids))]
    return Sample(ids=np.array(ids, np.int32), logprobs=-np.arange(len(ids), dtype=np.float32), spans=spans,
                  finished="length")


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize(("text", "stops", "before", "tokens"), [
    ("Thought: é\nObservation: 5", ["Observation:"], "Thought: é\n", 24),
    ("a </code> b </code>", ["</code>"], "a ", 9), ("ab", ["a", "b"], "", 1), ("xaby", ["by", "ab"], "x", 3),
    ("火b", ["b"], "火", 4)])
def test_an_answer_ends_with_the_token_that_completes_the_text(text: str, stops: list[str], before: str, tokens: int):
    """The text before it is the answer; the tokens are the shortest beginning of the sample that holds it."""
    sample = sampled(text)
    cut, shown, stop = cut_at(sample, stops, decode)
    assert (shown, len(cut.ids), cut.finished) == (before, tokens, "stop")
    assert stop in stops
    assert decode(sample.ids[:tokens].tolist()).startswith(before + stop)
    assert not any(stop in decode(sample.ids[:tokens - 1].tolist()) for stop in stops)
    assert cut.ids.tolist() == sample.ids[:tokens].tolist()
    assert cut.logprobs.tolist() == sample.logprobs[:tokens].tolist()
    wanted = [(OLD, 0, min(4, tokens)), *([(NEW, 4, tokens)] if tokens > 4 else [])]
    assert [(span.version, span.start, span.end) for span in cut.spans] == wanted


@pytest.mark.parametrize("stops", [[], ["Observation:"]])
def test_an_answer_without_the_text_is_as_it_was(stops: list[str]):
    sample = sampled("hello")
    assert cut_at(sample, stops, decode) == (sample, "hello", None)
