"""Tiny random models of published families through learner and sampler.

`python -m lab.bench.models` writes the table of docs/models.md. Names after it choose families; then the table is
printed only. It takes half a minute for each family.

Each model is loaded, packed and held against its own code, exported, sampled from by vLLM, and updated there to other
weights. A family is right if each difference is within the bound of learner/model/probe.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.tiny_families import FAMILIES, VOCABULARY, Family, make_family
from services.config.tree import Config, RolloutSection
from services.errors import EngineFault, UserError
from services.files import write_whole
from services.records import Step, Version

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEAD = "| family | its special features | result | learner | sampler | after an update |\n|---|---|---|---|---|---|\n"
FIRST = Version(incarnation=0, step=0, digest="first")
CONFIG = Config(
    name="bench-models", steps=1,
    rollout=RolloutSection(slots=8, max_prompt_tokens=100, max_response_tokens=24, kv_cache_gb=0.1, threads=1))
PROMPTS = (20, 45, 9, 70)
"""Tokens of each prompt; windows and states reach over several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Mean differences of logprobs in nats, and the bound for the last two."""

    sampler: float
    updated: float
    bound: float


def learner_gap(folder: Path) -> float:
    """The mean difference between packed rows and rows alone. Raises UserError if the family is refused."""
    import torch

    from learner.model.policy import load_policy
    from learner.rows.packing import pack_rows

    policy, rows = load_policy(folder), _rows(_random_steps())
    with torch.no_grad():
        packed, _ = policy(pack_rows(rows, np.arange(len(rows))))
        alone = torch.cat([policy(pack_rows(rows, np.array([i])), own=True)[0] for i in range(len(rows))])
    return float((packed - alone).abs().mean())


async def sampler_gaps(folder: Path, other: Path) -> Gaps:
    """Compares the sampler's logprobs with the learner's, for the weights in `folder` and, after an update, in `other`.

    Raises EngineFault if the sampler cannot load or update such a model.
    """
    from learner.model.policy import load_policy
    from rollout.engine.engine import Engine
    from services.weights.pack import pack_tensors

    engine = Engine(folder, FIRST, config=CONFIG.rollout, dtype="float32")
    try:
        await engine.start()
        before, _ = await _gap(engine, folder)
        packed = pack_tensors(load_policy(other).hf.state_dict().items())
        version = Version(incarnation=1, step=0, digest=packed.digest)
        await engine.update(version, packed.manifest, packed.buffer)
        after, allowed = await _gap(engine, other)
        return Gaps(sampler=before, updated=after, bound=allowed)
    finally:
        await engine.close()


async def _gap(engine: Any, folder: Path) -> tuple[float, float]:
    """Mean difference on what the engine answers now, and its bound."""
    import torch

    from learner.model.policy import load_policy
    from learner.model.probe import bound
    from learner.rows.packing import pack_rows

    steps = [await _sampled(engine, step, f"{folder.name}/{i}") for i, step in enumerate(_random_steps())]
    policy, rows = load_policy(folder), _rows(steps)
    with torch.no_grad():
        logprobs, _ = policy(pack_rows(rows, np.arange(len(rows))))
        spread = float(policy(pack_rows(rows, np.array([0])), own=True)[1].mean())
    return float(np.abs(logprobs.numpy() - rows.sampler_logprobs).mean()), bound(policy, spread, half=False)


async def _sampled(engine: Any, step: Step, request: str) -> Step:
    import msgspec

    sample = await engine.sample(step.prompt_ids.tolist(), temperature=1.0, seed=0, max_tokens=20, stop_token_ids=(),
                                 request_id=request)
    return msgspec.structs.replace(step, response_ids=sample.ids, logprobs=sample.logprobs, spans=sample.spans)


def _random_steps() -> list[Step]:
    rng = np.random.default_rng(0)
    return [Step(observation="", prompt_ids=rng.integers(3, VOCABULARY, length, dtype=np.int32),
                 response_ids=rng.integers(3, VOCABULARY, 8, dtype=np.int32), logprobs=np.zeros(8, np.float32),
                 spans=[], action="", valid=True, admissible=True, reward=0.0) for length in PROMPTS]


def _rows(steps: Sequence[Step]) -> Any:
    from learner.rows.packing import make_rows

    count = len(steps)
    return make_rows(steps, advantages=[0.0] * count, temperatures=[1.0] * count, stale=[False] * count)


def export_is_whole(folder: Path, into: Path) -> bool:
    """Whether an export of this model has the digest of the weights that are published."""
    from learner.rank_group import RankGroup
    from learner.trainer import Learner
    from services.weights.pack import pack_folder

    with contextlib.closing(_Alone(RankGroup(0, 1))) as alone:
        learner = Learner(CONFIG, folder, alone.rank_group)
        published = learner.pack()
        learner.export(into)
    return pack_folder(into, "float32").digest == published.digest


@dataclass(frozen=True)
class _Alone:
    """A group of one rank, left when the block ends."""

    rank_group: Any

    def close(self) -> None:
        self.rank_group.leave()


def table_row(family: Family, folder: Path) -> str:
    """One row of the table: the result, and each difference in nats."""
    first, other = (make_family(family, folder / name, seed=seed) for name, seed in (("a", 0), ("b", 1)))
    cells: list[str] = []
    try:
        cells.append(f"{learner_gap(first):.0e}")
        whole = export_is_whole(first, folder / "export")
        gaps = asyncio.run(sampler_gaps(first, other))
    except UserError as error:
        result = f"refused: it {str(error).partition('which ')[2].partition(';')[0] or error}"
    except EngineFault as error:
        result = f"refused by this vLLM: {str(error)[:120]}"
    else:
        cells += [f"{gaps.sampler:.0e}", f"{gaps.updated:.0e}"]
        right = max(gaps.sampler, gaps.updated) <= gaps.bound
        result = "works" if right and whole else "wrong" if whole else "wrong: its export is not what is published"
    return f"| {' | '.join([family.name, family.features, result, *cells, *[''] * (3 - len(cells))])} |\n"


def main(names: Sequence[str]) -> None:
    """Makes the table. Without names it goes into docs/models.md."""
    if unknown := sorted({*names} - {family.name for family in FAMILIES}):
        sys.exit(f"error: no family {', '.join(unknown)}; use {'; '.join(family.name for family in FAMILIES)}")
    rows: list[str] = []
    for family in FAMILIES:
        if not names or family.name in names:
            with tempfile.TemporaryDirectory(prefix="gagpo-family-") as folder:
                rows.append(table_row(family, Path(folder)))
            print(rows[-1], end="", flush=True)
    if not names:
        before = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
        write_whole(PAGE, before + HEAD + "".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
