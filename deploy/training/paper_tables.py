"""The sweeps that make a paper's tables: their variants, and means over seeds.

    table1      the RL methods of table 1 at three seeds            table2   the ablations at three seeds
    table3      a grid of gamma and lambda                          ablations   table 2 at one seed

The text of arXiv 2605.13217 that we have lacks the numbers of tables 2 and 3. The cells of table 3 are our choice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deploy.runs.folder import RunFolder
from deploy.training.sweep import Variant, final
from services.config.tree import Config
from services.files import read_json, write_whole
from services.statistics import spread

SEEDS = 3
"""Seeds of tables 1 and 2, as the paper has."""
_TOKEN_LOSS: Mapping[str, object] = {"learner.loss.ratio": "token", "learner.loss.aggregation": "tokens"}
_GAGPO: Mapping[str, object] = {
    "learner.credit.estimator": "gagpo", "learner.credit.gamma": 0.95, "learner.credit.lam": 0.8,
    "learner.loss.ratio": "sequence", "learner.loss.aggregation": "actions"}
"""The settings of GAGPO's presets that those of other methods have otherwise."""


def _ablation(name: str, title: str, changed: Mapping[str, object]) -> Variant:
    return Variant(name=name, title=title, overrides={**_GAGPO, **changed})


ABLATIONS = (
    _ablation("full", "full", {}),
    _ablation("no-temporal", "without temporal credit (λ = 0)", {"learner.credit.lam": 0.0}),
    _ablation("monte-carlo", "Monte Carlo (λ = 1)", {"learner.credit.lam": 1.0}),
    _ablation("token-ratio", "without sequence ratio", _TOKEN_LOSS),
    _ablation("trajectory-reward", "+ trajectory reward", {"learner.credit.broadcast": 1.0}),
    _ablation("batch-norm", "batch normalisation", {"learner.credit.normalize": "batch"}),
    _ablation("no-norm", "no normalisation", {"learner.credit.normalize": "none"}),
)
"""The rows of table 2: GAGPO over a config, which may be the preset of any method of table 1, with one change each."""


def methods(config: Config) -> tuple[Variant, ...]:
    """Returns the RL methods of table 1, with the settings of their presets (deploy/configs/paper) over `config`, which
    may be the preset of any of them.

    PPO has no groups, so it plays as many tasks as the others play episodes.
    """
    learner = config.learner
    mode = "mean_norm" if config.env.name == "webshop" else "mean_std_norm"
    laid: Mapping[str, Mapping[str, object]] = {
        "GiGPO": {"estimator": "gigpo", "gamma": 0.95, "omega": 1.0, "mode": mode},
        "GRPO": {"estimator": "grpo", "mode": "mean_std_norm", "statistics": "rows"},
        "RLOO": {"estimator": "rloo", "statistics": "rows"},
        "PPO": {"estimator": "ppo", "gamma": 1.0, "lam": 1.0, "values": "tokens"},
    }
    alone = {"learner.groups_per_step": learner.groups_per_step * learner.group_size, "learner.group_size": 1}
    others = (Variant(name=title.lower(), title=title, overrides={
        **{f"learner.credit.{key}": value for key, value in keys.items()},
        **_TOKEN_LOSS, **(alone if title == "PPO" else {})}) for title, keys in laid.items())
    return Variant(name="gagpo", title="GAGPO", overrides=_GAGPO), *others


def grid(_: Config) -> tuple[Variant, ...]:
    """Returns table 3: the default first, then its neighbours."""
    cells = [(0.95, 0.8), *((gamma, lam) for gamma in (0.9, 0.95, 1.0) for lam in (0.5, 0.8, 0.95)
                            if (gamma, lam) != (0.95, 0.8))]
    return tuple(Variant(name=f"gamma{gamma:g}-lambda{lam:g}", title=f"γ = {gamma:g}, λ = {lam:g}",
                         overrides={"learner.credit.gamma": gamma, "learner.credit.lam": lam}) for gamma, lam in cells)


def with_seeds(variants: Sequence[Variant], first: int) -> tuple[Variant, ...]:
    """Returns each variant at SEEDS seeds from `first` on. All methods of one seed come before the next seed."""
    return tuple(replace(variant, name=f"{variant.name}-seed{seed}", title=f"{variant.title}, seed {seed}",
                         method=variant.title, overrides={**variant.overrides, "seed": seed})
                 for seed in range(first, first + SEEDS) for variant in variants)


SWEEPS: Mapping[str, Callable[[Config], tuple[Variant, ...]]] = {
    "ablations": lambda _: ABLATIONS,
    "table1": lambda config: with_seeds(methods(config), config.seed),
    "table2": lambda config: with_seeds(ABLATIONS, config.seed),
    "table3": grid,
}


Spread = tuple[float, float | None]
"""Mean, and sample standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """Final success of one method over its seeds. Each value is a pair: mean, and sample standard deviation, which one
    seed does not have."""

    method: str
    panel: str
    temperature: float
    seeds: int
    success: Spread
    by_type: Mapping[str, Spread]
    score: Spread | None
    """The environment's own score; None if it has none."""


def over_seeds(made: Mapping[str, Config], variants: Sequence[Variant]) -> list[MethodLine]:
    """Returns one line per method and temperature, of the variants that belong to a method."""
    rows: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for variant in variants:
        for row in final(RunFolder(made[variant.name].run_dir)) if variant.method else ():
            rows[row["temperature"], variant.method].append(row)
    return [_line(method, temperature, found) for (temperature, method), found in
            sorted(rows.items(), key=lambda item: -item[0][0])]


def _line(method: str, temperature: float, rows: Sequence[dict[str, Any]]) -> MethodLine:
    scores = [row["task_score"] for row in rows if row.get("task_score") is not None]
    types = sorted(set.intersection(*(set(row["success_by_type"]) for row in rows)))
    return MethodLine(
        method=method, panel=rows[0]["split"], temperature=temperature, seeds=len(rows),
        success=_pair([row["success_rate"] for row in rows]),
        by_type={name: _pair([row["success_by_type"][name] for row in rows]) for name in types},
        score=_pair(scores) if len(scores) == len(rows) else None)


def _pair(values: Sequence[float]) -> Spread:
    return sum(values) / len(values), spread(values) if len(values) > 1 else None


def as_text(lines: Sequence[MethodLine]) -> list[str]:
    """Returns the table as the papers print it: percent, mean ± standard deviation over seeds."""
    if not lines:
        return []
    types = list(lines[0].by_type)
    out = ["Mean and standard deviation over seeds, in percent:",
           "  " + f"{'':<34}{'seeds':>7}" + "".join(f"{name[:12]:>13}" for name in [*types, "all", "score"])]
    for line in lines:
        cells = [*(line.by_type.get(name) for name in types), line.success, line.score]
        shown = "".join(f"{_percent(cell):>13}" for cell in cells)
        out.append(f"  {line.method:<26} T={line.temperature:<5g}{line.seeds:>7}{shown}")
    return out


def _percent(cell: Spread | None) -> str:
    if cell is None:
        return "-"
    mean, deviation = cell
    return f"{100 * mean:.1f} ± {'-' if deviation is None else f'{100 * deviation:.1f}'}"


def write(folder: Path, lines: Sequence[MethodLine]) -> list[str]:
    """Adds the table to sweep.json and sweep.txt, if it has lines. Returns its text."""
    text = as_text(lines)
    if lines:
        found = read_json(folder / "sweep.json", dict[str, Any])
        whole = {**found, "over_seeds": [asdict(line) for line in lines]}
        write_whole(folder / "sweep.json", json.dumps(whole, indent=1) + "\n")
        told = (folder / "sweep.txt").read_text(encoding="utf-8")
        write_whole(folder / "sweep.txt", told + "\n".join(text) + "\n")
    return text
