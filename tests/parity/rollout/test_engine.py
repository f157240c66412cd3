"""The sampler against a plain Hugging Face forward pass of the weights that it reports, in float32."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from byte_tokenizer import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from rollout.engine.engine import Engine, Sample
from rollout.engine.sample import cut_at
from rollout.engine.settings import CPU_HEAD_SIZES, check_shape
from services.errors import EngineFault, UserError
from services.process.guard import processes_in
from services.records import Version
from services.weights import pack

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

FIRST = Version(incarnation=0, step=0, digest="initial")

TOLERANCE = 1e-4
"""Tolerance in nats per token. With a stale head or cache the difference is 0.3 or more."""

PROMPTS = [list(np.random.default_rng(i).integers(2, 500, 40 + 7 * i)) for i in range(6)]


def reference(model, prompt, sample: Sample, temperature: float) -> np.ndarray:
    """Returns the logprobs [R] of the sampled tokens under `model`, from one forward pass."""
    ids = torch.tensor([[*map(int, prompt), *map(int, sample.ids)]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1)[torch.arange(len(sample.ids)), torch.from_numpy(sample.ids).long()].numpy()


async def sample_all(engine: Engine, name: str, temperature: float = 0.7, tokens: int = 12) -> list[Sample]:
    return await asyncio.gather(*(
        engine.sample(
            [int(i) for i in prompt], temperature=temperature, seed=k, max_tokens=tokens, stop_token_ids=[1],
            request_id=f"{name}/{k}",
        )
        for k, prompt in enumerate(PROMPTS)
    ))  # fmt: skip


async def load(engine: Engine, model, step: int) -> Version:
    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # the learner's named_parameters() do not have it either
    packed = pack.pack_tensors(weights.items())
    version = Version(incarnation=engine.version.incarnation + 1, step=step, digest=packed.digest)
    await engine.update(version, packed.manifest, packed.buffer)
    return version


def worst(model, samples: list[Sample], temperature: float = 0.7) -> float:
    pairs = zip(PROMPTS, samples, strict=True)
    return max(float(np.abs(reference(model, p, s, temperature) - s.logprobs).max()) for p, s in pairs)


async def check_update(engine: Engine, old, new) -> None:
    before = await sample_all(engine, "before")
    version = await load(engine, new, step=1)
    after = await sample_all(engine, "after")
    assert worst(old, before) < TOLERANCE
    assert worst(new, after) < TOLERANCE
    assert worst(old, after) > 0.1  # the two models do differ
    assert all([span.version for span in sample.spans] == [version] for sample in after)


async def test_requests_in_flight_hold_blocks_of_the_cache_and_give_them_back(
        sampler: Engine, monkeypatch: pytest.MonkeyPatch):
    """Each report is looked at as it comes: on a busy machine they come in one burst, with the last, which says 0."""
    held: list[float] = []
    report = sampler._llm._stepped
    monkeypatch.setattr(sampler._llm, "_stepped", lambda share: (report(share), held.append(sampler.kv_used)))
    await sample_all(sampler, "in-flight", tokens=100)
    assert 0 < max(held) <= 1
    assert sampler.kv_used == 0


async def test_an_update_replaces_the_weights_of_a_model_with_a_tied_head(sampler: Engine, tiny_model):
    """Before an update the sampler is the old model, after it the new one, also for a tied head and for prefix hits."""
    old = tiny_model(tied=True, seed=1)
    await load(sampler, old, step=0)
    await check_update(sampler, old, tiny_model(tied=True, seed=2))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def untied(tmp_path_factory, sampler_config, tiny_model):
    """Provides an engine of a model with a separate head. It starts with random weights, as a rollout worker's does."""
    folder = tmp_path_factory.mktemp("untied")
    tiny_model(tied=False, seed=3).save_pretrained(folder)
    engine = Engine(folder, FIRST, config=sampler_config, dtype="float32", load=False)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def test_updates_replace_random_weights_and_then_those_of_a_model_with_its_own_head(untied: Engine, tiny_model):
    """A rollout worker's first version comes by an update."""
    old = tiny_model(tied=False, seed=3)
    assert worst(old, await sample_all(untied, "random")) > 0.1
    await load(untied, old, step=0)
    await check_update(untied, old, tiny_model(tied=False, seed=4))


async def test_an_update_ends_when_vllms_process_dies_in_it(untied: Engine, tiny_model):
    """The last test of this engine. vLLM answers no call that its dead process has taken.

    The process is stopped first, so that the call is there.
    """
    processes = processes_in(str(untied._folder.path))
    assert processes
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    update = asyncio.create_task(load(untied, tiny_model(tied=False, seed=2), step=2))
    while not untied.paused:  # noqa: ASYNC110 - it is within milliseconds
        await asyncio.sleep(0.01)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(EngineFault, match="vLLM's process died"):
        async with asyncio.timeout(60):
            await update


async def sample_until(end: asyncio.Event, engine: Engine, k: int) -> list[Sample]:
    """Asks one prompt again and again until `end` is set, with another number of tokens than the other prompts."""
    samples: list[Sample] = []
    while not end.is_set():
        samples.append(await engine.sample(
            [int(i) for i in PROMPTS[k]], temperature=1.0, seed=len(samples), max_tokens=45 + 7 * k, stop_token_ids=[1],
            request_id=f"flight/{k}/{len(samples)}"))
    return samples


async def test_requests_in_flight_are_kept(sampler: Engine, tiny_model):
    """Tokens before the update match the old model, tokens after it the new one, and the spans say where.

    The requests follow each other without a pause, each prompt at its own pace: every update meets some in the middle.
    """
    models = [tiny_model(tied=True, seed=seed) for seed in (5, 6, 7, 8)]
    versions, end = {await load(sampler, models[0], step=3): models[0]}, asyncio.Event()
    running = [asyncio.create_task(sample_until(end, sampler, k)) for k in range(len(PROMPTS))]
    for number, model in enumerate(models[1:]):
        while not sampler.kv_used:  # noqa: ASYNC110 - vLLM's process changes it
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        versions[await load(sampler, model, step=4 + number)] = model
    end.set()
    samples = [(prompt, one) for prompt, found in zip(PROMPTS, await asyncio.gather(*running), strict=True)
               for one in found]
    assert any(len(sample.spans) > 1 for _, sample in samples), "no request was in flight during an update"
    for prompt, sample in samples:
        ends = [span.end for span in sample.spans]
        assert [span.start for span in sample.spans] == [0, *ends[:-1]]
        assert ends[-1] == len(sample.ids)
        assert [span.version.step for span in sample.spans] == sorted({span.version.step for span in sample.spans})
        for span in sample.spans:
            part = slice(span.start, span.end)
            expected = reference(versions[span.version], prompt, sample, 1.0)
            assert np.abs(expected[part] - sample.logprobs[part]).max() < TOLERANCE


async def test_requests_in_flight_sleep_and_go_on(sampler: Engine, tiny_model):
    """vLLM's CPU build goes through the same states of sleep as on CUDA, and frees no memory.

    The requests follow each other without a pause, so that they outlast any sleep. They are in flight if their blocks
    are held while the engine sleeps; if a sleep meets none, the next one does.
    """
    model = tiny_model(tied=True, seed=8)
    version, end = await load(sampler, model, step=5), asyncio.Event()
    running = [asyncio.create_task(sample_until(end, sampler, k)) for k in range(len(PROMPTS))]
    await sampler.sleep()
    while not sampler.kv_used:
        await sampler.wake()
        await asyncio.sleep(0.05)
        await sampler.sleep()
    late = asyncio.create_task(sampler.sample([5] * 40, temperature=1.0, seed=0, max_tokens=4, stop_token_ids=[],
                                              request_id="late"))
    end.set()
    done, _ = await asyncio.wait([*running, late], timeout=0.5)
    assert (done, sampler.paused, await sampler._llm.call("is_sleeping")) == (set(), True, True)
    await sampler.wake()
    found = await asyncio.gather(*running)
    for prompt, samples in zip(PROMPTS, found, strict=True):
        for sample in samples:
            assert np.abs(reference(model, prompt, sample, 1.0) - sample.logprobs).max() < TOLERANCE
            assert [span.version for span in sample.spans] == [version]
    assert (len((await late).ids), sampler.paused, await sampler._llm.call("is_sleeping")) == (4, False, False)


async def test_same_seed_draws_the_same_tokens(sampler: Engine, tiny_model):
    """A retried episode repeats itself: only the seed decides."""
    await load(sampler, tiny_model(tied=True, seed=7), step=5)
    one, two = await sample_all(sampler, "once"), await sample_all(sampler, "twice")
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one[0].ids, one[1].ids)


async def test_stop_token_is_part_of_the_response(sampler: Engine):
    """The end token is sampled, so it is trained on: it comes back with its logprob."""
    prompt = [int(i) for i in PROMPTS[0]]
    every = {"temperature": 1.0, "seed": 3, "max_tokens": 8, "request_id": "stop"}
    free = await sampler.sample(prompt, stop_token_ids=[], **every)
    assert free.finished == "length"
    stop = int(free.ids[3])
    stopped = await sampler.sample(prompt, stop_token_ids=[stop], **every)
    assert stopped.finished == "stop"
    assert stopped.ids[-1] == stop
    assert len(stopped.ids) == len(stopped.logprobs) == list(free.ids).index(stop) + 1


async def test_an_engine_that_cannot_start_tells_the_last_error_of_its_process(tmp_path, sampler_config, monkeypatch):
    """Heads of 16 have no kernel on a CPU; preflight refuses them by the list that vLLM has."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()
    LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="heads of size 16"):
        check_shape(tmp_path)
    engine = Engine(tmp_path, FIRST, config=sampler_config, dtype="float32")
    temporary = Path(tempfile.mkdtemp())  # a socket's path has 107 characters at most
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(EngineFault, match=r"^start: RuntimeError: Unsupported CPU attention .*head_dim=16"):
        await engine.start()
    await engine.close()
    await asyncio.to_thread(temporary.rmdir)  # raises if a socket or a rendezvous file is left


async def test_an_answer_ends_at_a_text_of_several_tokens(sampler: Engine, tied_folder: Path):
    """It is the beginning of the answer without that end, token by token, up to the token that completes the text."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tied_folder)
    prompt = [int(i) for i in PROMPTS[1]]
    every = {"temperature": 1.0, "seed": 5, "max_tokens": 60, "stop_token_ids": [], "request_id": "tag"}

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    free = await sampler.sample(prompt, **every)
    pairs = (decode(free.ids[i:i + 2].tolist()) for i in range(5, 60))
    tag = next(text for text in pairs if len(text) == 2 and text.isascii())
    stopped = await sampler.sample(prompt, stop_texts=["no such text", tag], **every)
    assert_same_sample(stopped, cut_at(free, [tag], decode)[0])
    assert 2 <= len(stopped.ids) < len(free.ids)
    assert_same_sample(await sampler.sample(prompt, stop_texts=["no such text"], **every), free)


def assert_same_sample(sample: Sample, expected: Sample) -> None:
    """Logprobs of another batch differ by rounding."""
    assert sample.ids.tolist() == expected.ids.tolist()
    assert (sample.spans, sample.finished) == (expected.spans, expected.finished)
    np.testing.assert_allclose(sample.logprobs, expected.logprobs, atol=TOLERANCE)
