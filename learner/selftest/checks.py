"""The measurements of the learner's self-test, one method per question. Each yields lines as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from learner.model.attention import attend_grid, attend_varlen, takes_varlen
from learner.model.memory import adapter_parameters, memory, training_of
from learner.model.policy import load_policy
from learner.model.utilization import forward_flops, passes, peak
from learner.rank_group import RankGroup
from learner.rows.batch import assign_credit, rows_of
from learner.rows.packing import Pack, Rows, pack_rows
from learner.selftest.scene import Gauge, Scene, config, groups
from learner.selftest.table import Line
from learner.trainer import Learner
from services.amounts import GIB, rounded
from services.weights.pack import unpack

DLOGP = 0.05
"""Largest mean difference of logprobs between the learner in bfloat16 and the plain model in float32, in nats."""
MFU = 0.45
"""Aim of the share of model FLOPs in those of the measured matrix product, at the largest pack."""
PACKS = 4
"""Packs of an update, so that the optimizer's share of the time is like that in a run."""
PLAN = 0.2
"""Largest relative difference between measured and planned memory."""
SAME_NORM = 0.02
"""Largest relative difference between the gradient norms of compiled and of plain layers in bfloat16."""
LEFT = 0.05
"""Largest share of the learner's memory that stays on the device while its states are in host memory."""
Lines = Iterator[Line]


class Checks:
    """The shared parts of the checks: the sizes, a folder with a model, a group of one rank."""

    def __init__(self, scene: Scene, folder: Path, rank_group: RankGroup) -> None:
        self.scene, self.folder, self.rank_group = scene, folder, rank_group
        self.gauge = Gauge(rank_group.device)
        self.rate = 0.0
        """FLOPs per second of a large matrix product."""

    def learner(self, tokens: int, **learner: Any) -> Learner:
        """Returns a new learner, after freeing unused memory."""
        self.gauge.fresh()
        return Learner(config(tokens, self.rank_group.device, **learner), self.folder, self.rank_group)

    def step_rows(self, tokens: int) -> int:
        """Returns the number of rows of one update with packs of so many tokens."""
        return max(2, PACKS * tokens // self.scene.row)

    def rows(self, count: int) -> Rows:
        """Returns rows with credit."""
        batch = groups(self.scene, count)
        return rows_of(batch, assign_credit(batch, config(64, self.rank_group.device).learner.credit), policy_step=0)

    def pack(self, count: int, *, grid: bool) -> Pack:
        """Returns a pack of `count` rows."""
        rows = self.rows(max(2, count))
        return pack_rows(rows, torch.arange(count).numpy(), self.rank_group.device, grid=grid)

    def device(self) -> Lines:
        """Yields the name of the device and its speed of multiplication."""
        self.rate = self.gauge.matmul_rate(self.scene.square)
        cuda = self.gauge.cuda
        name = torch.cuda.get_device_name(self.rank_group.device) if cuda else "CPU"
        stated = peak(name)
        yield Line(name="device", value=f"{name}, torch {torch.__version__}")
        yield Line(name="bfloat16 matrix product", value=f"{rounded(self.rate / 1e12)} TFLOP/s",
                   aim=f"data sheet: {stated / 1e12:.0f}" if stated else "")

    def steps(self) -> Lines:
        """Takes three steps with each pack size, and with checkpointed layers: speed, and memory against the plan."""
        peaks: dict[int, int] = {}
        for tokens in self.scene.packs:
            learner = self.learner(tokens)
            yield from self._three_steps(f"{tokens} tokens a pack", learner, tokens, peaks,
                                         aim=MFU if tokens == self.scene.packs[-1] and not
                                         learner.layout.checkpointing else None)
            del learner
        learner = self.learner(self.scene.packs[-1], checkpointing=True)
        yield from self._three_steps(f"{self.scene.packs[-1]} tokens, checkpointed", learner, self.scene.packs[-1], {})
        if len(peaks) > 1:
            small, large = list(peaks)[-2:]
            yield Line(name="memory per token", value=f"{(peaks[large] - peaks[small]) / (large - small) / 1e6:.2f} MB")

    def _three_steps(self, name: str, learner: Learner, tokens: int, peaks: dict[int, int], *,
                     aim: float | None = None) -> Lines:
        rows = self.step_rows(tokens)
        batch = groups(self.scene, rows)
        self.gauge.fresh()
        reports = [learner.train(batch) for _ in range(3)]
        self.gauge.wait()
        metrics, policy = reports[-1].metrics, learner.policy
        seconds = metrics["seconds/forward_backward"] + metrics["seconds/optimizer"]
        trained = self.rows(rows)
        flops = forward_flops(policy, trained) * passes(
            reference=True, critic=False, adapters=learner.config.learner.lora.rank > 0)
        mfu = flops / seconds / self.rate
        finite = all(report.metrics["grad_norm"] == report.metrics["grad_norm"] for report in reports)
        yield Line(name=f"{name}: speed", passed=None if aim is None or not self.gauge.cuda else mfu >= aim,
                   value=f"{len(trained.tokens) / seconds:,.0f} tokens/s, {100 * mfu:.1f}% of the product's FLOPs",
                   aim=f">= {100 * aim:.0f}%" if aim else "")
        yield Line(name=f"{name}: three steps", passed=finite, aim="finite gradients",
                   value=f"gradient norm {rounded(metrics['grad_norm'])}, "
                         f"update in {1e3 * metrics['seconds/optimizer']:.0f} ms")
        measured = self.gauge.peak()
        if measured is not None:
            if not learner.layout.checkpointing:
                peaks[tokens] = measured
            planned = planned_bytes(learner)
            yield Line(name=f"{name}: memory", aim=f"plan {planned / GIB:.1f} GiB",
                       value=f"{measured / GIB:.1f} GiB, {self.gauge.reserved() / GIB:.1f} reserved",
                       passed=abs(measured / planned - 1) <= PLAN)

    def numerics(self) -> Lines:
        """Compares the learner's logprobs in bfloat16 with those of the plain model in float32."""
        learner = self.learner(self.scene.packs[0])
        varlen = takes_varlen(self.rank_group.device, half=True)
        with torch.no_grad():
            logprobs, _ = learner.policy(self.pack(1, grid=not varlen))
        del learner
        self.gauge.fresh()
        hf = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True,
            trust_remote_code=False)
        cast(nn.Module, hf).to(self.rank_group.device)
        pack = self.pack(1, grid=False)
        with torch.no_grad():
            logits = hf(input_ids=pack.tokens, logits_to_keep=self.scene.response + 1).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(-1, pack.targets[:, None])[:, 0]
        gap = (logprobs - expected).abs()
        yield Line(name="|dlogp| against float32 eager", passed=bool(gap.mean() < DLOGP),
                   value=f"mean {float(gap.mean()):.4f}, largest {float(gap.max()):.4f}", aim=f"mean < {DLOGP}")

    def attention(self) -> Lines:
        """Runs each kernel forwards and backwards over the largest pack, and compares results and gradients."""
        count = self.scene.packs[-1] // self.scene.row
        grid, flat = self.pack(count, grid=True), self.pack(count, grid=False)
        heads, keys = self.scene.model["num_attention_heads"], self.scene.model["num_key_value_heads"]
        size, tokens = self.scene.model["hidden_size"] // heads, flat.tokens.shape[1]
        inputs = query, key, value = [
            torch.randn(1, h, tokens, size, device=self.rank_group.device, dtype=torch.bfloat16, requires_grad=True)
            for h in (heads, keys, keys)]
        weights = torch.randn(1, tokens, heads, size, device=self.rank_group.device, dtype=torch.bfloat16)
        assert grid.grid is not None
        rectangle, outputs = grid.grid, dict[str, list[Tensor]]()
        kernels = {"rectangle": lambda: attend_grid(query, key, value, rectangle, scaling=None, window=None)}
        if takes_varlen(self.rank_group.device, half=True):
            kernels["varlen"] = lambda: attend_varlen(query, key, value, flat, scaling=None, window=None)
        for name, kernel in kernels.items():
            out = kernel()
            outputs[name] = [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]
            seconds = self.gauge.seconds(lambda kernel=kernel: kernel().sum().backward())
            yield Line(name=f"attention, {name}", value=f"{1e3 * seconds:.2f} ms for {tokens} tokens, one layer")
        if len(outputs) > 1:
            yield same("varlen against the rectangle", outputs["varlen"], outputs["rectangle"], 0.02)

    def compiled(self) -> Lines:
        """Compares a step of compiled layers with one of plain layers: seconds of a pack, memory, gradient norm."""
        if not self.gauge.cuda:
            yield Line(name="compiled layers", value="not measured on a CPU")
            return
        tokens, seconds, norms = self.scene.packs[-1], dict[bool, float](), dict[bool, float]()
        for wanted in (False, True):
            learner, batch = self.learner(tokens, compile=wanted), groups(self.scene, self.step_rows(tokens))
            start = self.gauge.now()
            norms[wanted] = learner.train(batch).metrics["grad_norm"]
            first = self.gauge.now() - start
            self.gauge.fresh()
            seconds[wanted] = learner.train(batch).metrics["seconds/forward_backward"] / PACKS
            yield Line(name=f"layers {'compiled' if wanted else 'as they are'}",
                       value=f"{seconds[wanted]:.3f} s a pack of {tokens} tokens, {(self.gauge.peak() or 0) / GIB:.1f} "
                             f"GiB; the first step {first:.1f} s", aim=f"plan {planned_bytes(learner) / GIB:.1f} GiB")
            del learner
        yield Line(name="compiled layers", value=f"{100 * (seconds[False] / seconds[True] - 1):+.0f}% tokens/s",
                   aim="faster", passed=seconds[True] < seconds[False])
        gap = abs(norms[True] / norms[False] - 1)
        yield Line(name="gradient norm of compiled layers", value=f"differs by {100 * gap:.2f}%",
                   aim=f"<= {100 * SAME_NORM:.0f}%", passed=gap <= SAME_NORM)

    def persistence(self) -> Lines:
        """Saves, takes a step, loads and takes it again, which must give the same weights. Gathers and packs these."""
        learner, batch = self.learner(self.scene.packs[0]), groups(self.scene, 4)
        learner.train(batch)
        folder = self.folder / "saved"
        folder.mkdir()
        yield self._save("save, first time", learner, folder)  # takes the host memory
        yield self._save("save during a step", learner, folder, lambda: learner.train(batch))
        expected = dict(learner.state_dict_for_sampler())
        start = time.perf_counter()
        learner.load(folder)
        yield Line(name="load", value=f"{time.perf_counter() - start:.2f} s")
        learner.train(batch)
        start = time.perf_counter()
        packed = learner.pack()
        seconds = time.perf_counter() - start
        weights = unpack(packed.manifest, packed.buffer)
        yield Line(name="pack the weights", value=f"{seconds:.2f} s with their digest, "
                                                  f"{packed.buffer.nbytes / GIB:.2f} GiB")
        gap = _largest_gap(weights, expected)
        yield Line(name="a step after loading", value=f"largest difference of a weight {gap:.2g}",
                   aim="as without loading", passed=gap <= (1e-3 if self.gauge.cuda else 0.0))

    def _save(self, name: str, learner: Learner, folder: Path, work: Callable[[], object] = lambda: None) -> Line:
        start = self.gauge.now()
        saving = learner.save(folder)
        middle = time.perf_counter()
        work()
        saving.result(learner.config.learner.collective_s)
        end = time.perf_counter()
        written = sum(path.stat().st_size for path in folder.iterdir())
        return Line(name=name, value=f"{middle - start:.2f} s of training, {written / GIB:.2f} GiB; "
                                     f"{end - middle:.2f} s to the disk")

    def adapters(self) -> Lines:
        """Takes a step with LoRA, and compares merged weights with layers that have adapters."""
        tokens = self.scene.packs[-1]
        learner = self.learner(tokens, lr=1e-2, lora={"rank": self.scene.lora_rank})
        yield from self._three_steps(f"LoRA, {tokens} tokens a pack", learner, tokens, {})
        varlen = takes_varlen(self.rank_group.device, half=True)
        with torch.no_grad():
            adapted, _ = learner.policy(self.pack(1, grid=not varlen))
        exported = self.folder / "merged"
        learner.export(exported)
        with torch.no_grad():
            merged, _ = load_policy(exported, self.rank_group.device)(self.pack(1, grid=True))
        yield Line(name="LoRA, |dlogp| of merged weights", value=f"mean {float((adapted - merged).abs().mean()):.4f}",
                   aim=f"mean < {DLOGP}", passed=bool((adapted - merged).abs().mean() < DLOGP))

    def offload(self) -> Lines:
        """Compares updates with moments in host memory and on the device: same result, less memory, more time."""
        weights: dict[bool, dict[str, Tensor]] = {}
        for offloaded in (False, True):
            learner, batch = self.learner(self.scene.packs[0], offload=offloaded), groups(self.scene, 4)
            learner.train(batch)
            self.gauge.fresh()
            metrics = learner.train(batch).metrics
            held = self.gauge.peak()
            yield Line(name=f"update, moments on the {'host' if offloaded else 'device'}",
                       value=f"{metrics['seconds/optimizer']:.2f} s"
                       + (f", {held / GIB:.1f} GiB" if held is not None else ""))
            weights[offloaded] = dict(learner.state_dict_for_sampler())
            del learner
        gap = _largest_gap(weights[True], weights[False])
        yield Line(name="the update with moments on the host", value=f"largest difference of a weight {gap:.2g}",
                   aim="as on the device", passed=gap <= (1e-3 if self.gauge.cuda else 0.0))

    def host_offload(self) -> Lines:
        """Moves the states to host memory and back, and compares a step after that with a step without it.

        The first turn is slower, because it makes and pins the host memory.
        """
        weights: dict[bool, dict[str, Tensor]] = {}
        for offloaded in (False, True):
            learner, batch = self.learner(self.scene.packs[0]), groups(self.scene, 4)
            learner.train(batch)
            for turn in ("first", "second") if offloaded else ():
                yield self._turn(learner, turn)
            learner.train(batch)
            weights[offloaded] = dict(learner.state_dict_for_sampler())
            del learner
        gap = _largest_gap(weights[True], weights[False])
        yield Line(name="a step after that", value=f"largest difference of a weight {gap:.2g}",
                   aim="as with states on the device", passed=gap <= (1e-3 if self.gauge.cuda else 0.0))

    def _turn(self, learner: Learner, turn: str) -> Line:
        held, start = self.gauge.held(), self.gauge.now()
        learner.offload()
        left, middle = self.gauge.held(), self.gauge.now()
        learner.onload()
        end = self.gauge.now()
        return Line(
            name=f"states to host memory, {turn} turn", aim=f"<= {100 * LEFT:.0f}% left",
            value=f"{held / GIB:.2f} GiB, {left / GIB:.2f} left; {middle - start:.2f} s, {end - middle:.2f} s back",
            passed=left <= LEFT * held if self.gauge.cuda else None)


def planned_bytes(learner: Learner) -> float:
    """Returns the planned bytes of a learner without a critic, which recomputes activations if its layout says so."""
    adapters = adapter_parameters(learner.shape, learner.config.learner.lora)
    plain = training_of(learner.config, critic=False, adapters=adapters)
    return memory(learner.shape, replace(plain, checkpointing=learner.layout.checkpointing)).total


def same(name: str, tensors: Sequence[Tensor], expected: Sequence[Tensor], most: float) -> Line:
    """Returns a line that passes if no element differs by more than `most` of the largest element of its tensor."""
    gaps = [float((t - e).abs().max() / e.abs().max()) for t, e in zip(tensors, expected, strict=True)]
    return Line(name=name, value=f"largest difference {max(gaps):.2g}", aim=f"<= {most}",
                passed=all(gap <= most for gap in gaps))


def _largest_gap(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    return max(float((weights[name].float() - expected[name].float()).abs().max()) for name in weights)
