"""What `gagpo experiment credit` compares, and in which order its runs are made.

Every arm changes how credit is assigned and nothing else: tasks, sampling seeds, cold start, budget and loss are those
of the experiment's config. PPO alone keeps the token-level loss, since its advantages are per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deploy.report.arms import Arm
from services.config.file import lay_over
from services.config.tree import Config
from services.errors import UserError

SEEDS = 5
"""Of every arm."""
MORE_SEEDS = 5
"""Of the MAIN arms, beyond the first."""
CONFIRMING_SEEDS = 100
"""The first of the seeds that confirm: none of them is ever used to choose what is confirmed."""


def _arm(title: str, colour: str, estimator: str, **more: object) -> Arm:
    """Keys of `more` are below learner, with two underscores for the dot."""
    laid = {f"learner.{key.replace('__', '.')}": value for key, value in more.items()}
    return Arm(title=title, colour=colour, overrides={"learner.credit.estimator": estimator, **laid})


ARMS: dict[str, Arm] = {
    "gagpo": _arm("GAGPO", "#0072B2", "gagpo"),
    "gagpo_loo": _arm("GAGPO, leave-one-out", "#D55E00", "gagpo_loo"),
    "gigpo": _arm("GiGPO", "#009E73", "gigpo"),
    "grpo": _arm("GRPO", "#E69F00", "grpo"),
    "rloo": _arm("RLOO", "#CC79A7", "rloo"),
    "ppo": _arm("PPO", "#000000", "ppo", credit__gamma=1.0, credit__lam=1.0, loss__ratio="token",
                loss__aggregation="tokens"),
    "gagpo_loo-first": Arm(title="GAGPO, leave-one-out, one λ", colour="#F0E442", overrides={}, runnable=False),
    "gagpo-observation": _arm("GAGPO, the paper's key", "#56B4E9", "gagpo", credit__state_key="observation"),
}
"""Short name -> arm. The order is that of tables, legends and of the runs of one seed."""

MAIN = ("gagpo", "gagpo_loo", "gigpo")
"""The arms of the two questions that the experiment is about."""

COMPARISONS = (
    ("gagpo_loo", "gagpo"), ("gagpo", "gigpo"), ("gagpo_loo", "gigpo"), ("gagpo", "grpo"), ("gagpo", "rloo"),
    ("gagpo", "ppo"), ("gagpo", "gagpo-observation"), ("gagpo_loo-first", "gagpo"), ("gagpo_loo-first", "gigpo"),
)
"""(a, b): the table has a - b, paired by seed."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PlannedRun:
    """One arm at one seed."""

    seed: int
    arm: str

    @property
    def name(self) -> str:
        """Of its folder, its log and its JSON."""
        return f"{self.arm}-seed{self.seed}"


def chosen(names: str | None) -> list[str]:
    """Arms from a list with commas, in the registry's order; None: all. Raises UserError for an unknown one."""
    known = [name for name, arm in ARMS.items() if arm.runnable]
    wanted = known if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"there is no arm {unknown[0]!r}", f"choose among {', '.join(known)}")
    return [name for name in known if name in wanted]


def runs(arms: Iterable[str], seeds: Iterable[int]) -> list[PlannedRun]:
    """Seed by seed, all arms of each: wherever the budget ends, what is there is a balanced design but for one seed."""
    arms = list(arms)
    return [PlannedRun(arm=arm, seed=seed) for seed in seeds for arm in arms]


def first_seeds(arms: Sequence[str], seeds: int | None) -> list[PlannedRun]:
    """The seeds that choose: `seeds` of all arms; None: as planned, with more of the MAIN arms."""
    if seeds is not None:
        return runs(arms, range(seeds))
    main = [arm for arm in arms if arm in MAIN]
    return runs(arms, range(SEEDS)) + runs(main, range(SEEDS, SEEDS + MORE_SEEDS))


def fresh_seeds(arms: Sequence[str], seeds: int | None) -> list[PlannedRun]:
    """The seeds that confirm."""
    return runs(arms, range(CONFIRMING_SEEDS, CONFIRMING_SEEDS + (seeds or SEEDS)))


def config_of(run: PlannedRun, config: Config, *, cold_start: str) -> Config:
    """The config of one run. The seed fixes tasks and sampling seeds, so that the arms of one seed are paired."""
    return lay_over(config, {
        **ARMS[run.arm].overrides, "seed": run.seed, "name": run.name, "runs_dir": str(config.run_dir),
        "sft.enabled": False, "model.path": cold_start, "eval.compare_cold_start": False})


def to_confirm(scores: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """(winner, comparator) of the MAIN arms by mean score of the first seeds: the best against GAGPO, or GAGPO against
    the next. Raises UserError where there are no two to choose from.
    """
    ranked = sorted((arm for arm in MAIN if scores.get(arm)), key=lambda arm: -sum(scores[arm]) / len(scores[arm]))
    if len(ranked) < 2:
        raise UserError("there is no winner to confirm yet", "run the experiment first, without --confirm")
    return ranked[0], "gagpo" if "gagpo" in ranked[1:] else ranked[1]
