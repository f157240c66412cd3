"""A sampler that plays other weights than it was sent is stopped, in both dtypes and by each way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from deploy.selftest.engine_part import _Trial
from deploy.selftest.sizes import CPU
from deploy.selftest.transfer import Sent, trips
from learner.model.probe import folder_canary
from rollout.engine.engine import Engine
from rollout.weights.receiver import GpuReceiver, HostReceiver
from services.errors import EngineFault, WrongWeights
from services.records import Version
from services.weights.pack import pack_folder
from services.weights.registry import Participant, TransferRegistry

sys.path.insert(0, str(Path(__file__).parent))  # for vLLM's process
pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


class MutatedEngine(Engine):
    """An engine whose loading can be given a fault."""

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"worker_extension_cls": "mutated_loader.MutatedLoader"}


@pytest.fixture(scope="session")
def folders(tmp_path_factory, tiny_model) -> list[Path]:
    """Two models with heads of their own."""
    made = [tmp_path_factory.mktemp("model") for _ in range(2)]
    for seed, folder in enumerate(made):
        tiny_model(tied=False, seed=40 + seed).save_pretrained(folder)
    return made


async def _mutated(dtype: str, folders: list[Path], config) -> AsyncIterator[SimpleNamespace]:
    engine = MutatedEngine(folders[0], Version(incarnation=0, step=0), config=config, dtype=dtype)
    await engine.start()
    yield SimpleNamespace(
        engine=engine, dtype=dtype, folders=folders,
        canaries=[folder_canary(folder, half=dtype == "bfloat16") for folder in folders],
        packed=[pack_folder(folder, dtype) for folder in folders])
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def single(folders, sampler_config):
    async for scene in _mutated("float32", folders, sampler_config):
        yield scene


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def half(folders, sampler_config):
    async for scene in _mutated("bfloat16", folders, sampler_config):
        yield scene


async def send(scene: SimpleNamespace, model: int, way: str) -> None:
    """Sends one of the two models. The checks begin anew, as in a sampler that was just started."""
    incarnation = scene.engine.version.incarnation + 1
    if way == "host":
        packed = scene.packed[model]
        await scene.engine.update(Version(incarnation=incarnation, step=1, digest=packed.digest), packed.manifest,
                                  packed.buffer, scene.canaries[model])
    else:
        sent = Sent(model=scene.folders[model], canary=scene.canaries[model])
        await trips(scene.engine, sent, scene.dtype, way, rounds=1, incarnation=incarnation)


async def check_noticed(scene: SimpleNamespace, fault: str, way: str) -> None:
    await scene.engine.call("mutate", mutation="")
    await send(scene, 0, "host")
    await scene.engine.call("mutate", mutation=fault)
    with pytest.raises(WrongWeights, match="its logprobs"):
        await send(scene, 1, way)
    assert scene.engine.paused, "no sample of wrong weights leaves the engine"
    await scene.engine.sleep()
    await scene.engine.wake()
    assert scene.engine.paused, "also after it has slept"
    await scene.engine.call("mutate", mutation="")
    await send(scene, 1, way)
    assert not scene.engine.paused


@pytest.mark.parametrize(("fault", "way"), [("no load", "ipc"), ("skipped layer", "nccl"), ("stale head", "host"),
                                            ("swapped layers", "host")])
async def test_a_version_that_is_loaded_wrongly_is_noticed(single, fault, way):
    await check_noticed(single, fault, way)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "way"), [("no load", "host"), ("skipped layer", "ipc"), ("stale head", "nccl"),
                                            ("swapped layers", "ipc")])
async def test_it_is_noticed_in_bfloat16_too(half, fault, way):
    await check_noticed(half, fault, way)


async def test_the_self_test_of_a_gpu_fails_if_a_swap_has_no_effect_and_goes_on(single):
    trial = _Trial(replace(CPU, shape={"vocab_size": 512}, tokens=16), single.folders[0])
    trial.two = [Sent(model=single.folders[model], canary=single.canaries[model]) for model in (1, 0)]
    await single.engine.call("mutate", mutation="")
    await send(single, 0, "host")
    await single.engine.call("mutate", mutation="no swap")
    (line,) = await trial.transfer(single.engine, "ipc")
    assert (line.name, line.passed) == ("weights by CUDA IPC", False)
    await single.engine.call("mutate", mutation="")
    assert [line.passed for line in await trial.transfer(single.engine, "nccl")] == [True, True]


async def test_a_swap_without_effect_costs_no_sample_because_the_worker_takes_the_version_from_host_memory(single):
    """Requests in flight are sampled again, as if they had come after the update: none has tokens of two versions. The
    worker takes part no more."""
    engine, (old, new), registry = single.engine, single.packed, TransferRegistry()
    version = Version(incarnation=engine.version.incarnation + 1, step=1, digest=new.digest)

    async def ask(method: str, *arguments: Any) -> Any:
        return getattr(registry, method)(*arguments)

    async def fetch(*_: Any) -> Any:
        return new

    async def sample(name: str):
        return await engine.sample([7, 8, 9], temperature=1.0, seed=1, max_tokens=100, stop_token_ids=[],
                                   request_id=name)

    async def flow(name: str, end: asyncio.Event) -> list[Any]:
        found = []
        while not end.is_set():
            found.append(await sample(f"{name}/{len(found)}"))
        return found

    await engine.call("mutate", mutation="")
    await engine.update(Version(incarnation=version.incarnation, step=0, digest=old.digest), old.manifest, old.buffer,
                        single.canaries[0])
    receiver = GpuReceiver(engine, HostReceiver(engine, fetch, seconds=240), Participant(worker="w"), ask, address="")
    receiver._received = version
    await engine.call("mutate", mutation="no swap")
    working = asyncio.create_task(receiver.run())
    end = asyncio.Event()
    flying = [asyncio.create_task(flow(name, end)) for name in "abc"]
    while not engine.kv_used:  # noqa: ASYNC110 - vLLM's process changes it
        await asyncio.sleep(0.001)
    assert await receiver.receive(version, "", single.canaries[1]) is not None
    end.set()
    answers = [answer for flown in await asyncio.gather(*flying) for answer in flown]
    assert {len(answer.spans) for answer in answers} == {1}
    again = await sample("again")
    found = [answer for answer in answers if answer.spans[0].version == version]
    assert found, "no request was in flight"
    for answer in found:
        assert answer.ids.tolist() == again.ids.tolist()
        assert np.abs(answer.logprobs - again.logprobs).max() < 1e-4
    async with asyncio.timeout(60):
        while registry.members():  # noqa: ASYNC110 - plain state
            await asyncio.sleep(0.05)
    assert not working.done()
    working.cancel()


async def test_weights_with_a_wrong_byte_are_never_sampled_from(single):
    """The last test of this engine, which answers nothing more. The digest of the version is of other bytes."""
    engine, packed = single.engine, single.packed[0]
    await engine.call("mutate", mutation="")
    version = Version(incarnation=engine.version.incarnation + 1, step=9, digest=packed.digest)
    wrong = packed.buffer.copy()
    wrong[100] ^= 1
    with pytest.raises(EngineFault, match="expected"):
        await engine.update(version, packed.manifest, wrong)
    with pytest.raises(EngineFault):
        await engine.sample([7, 8, 9], temperature=1.0, seed=1, max_tokens=8, stop_token_ids=[], request_id="dead")
