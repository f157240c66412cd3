"""The arms of `python -m lab.experiments credit`, and the order of its runs.

An arm changes only how credit is assigned. Tasks, sampling seeds, cold start, budget and loss come from the
experiment's config. Only PPO keeps the token-level loss, because its advantages are per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deploy.report.tables import Arm
from deploy.runs.configs import lay_over
from services.config.tree import Config
from services.errors import UserError

SEEDS = 5
"""Number of seeds of each arm."""
MORE_SEEDS = 5
"""Number of further seeds of the MAIN arms."""
CONFIRMING_SEEDS = 100
"""The first of the confirming seeds. None of them is used to choose the arms that are confirmed."""


def _arm(title: str, colour: str, estimator: str, **more: object) -> Arm:
    """Makes an arm. Keys in `more` are config keys below `learner`, with two underscores for each dot."""
    laid = {f"learner.{key.replace('__', '.')}": value for key, value in more.items()}
    return Arm(title=title, colour=colour, overrides={"learner.credit.estimator": estimator, **laid})


FIRST_ARMS: dict[str, Arm] = {
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
"""Arms of the recorded experiment, which run unless `--arms` names others."""
NEAR_MARKOV = {"credit__state_key": "observation+admissible"}
KEY_ARMS: dict[str, Arm] = {
    "gagpo-mc": _arm("GAGPO, λ = 1", "#332288", "gagpo", credit__lam=1.0),
    "gagpo_graph": _arm("graph values", "#882255", "gagpo_graph"),
    "gagpo-adm": _arm("GAGPO, with admissible actions", "#88CCEE", "gagpo", **NEAR_MARKOV),
    "gagpo-stay": _arm("GAGPO, with admissible actions, nothing changed stays", "#999933", "gagpo", credit__stay=True,
                       **NEAR_MARKOV),
    "gagpo-mc-adm": _arm("GAGPO, λ = 1, with admissible actions", "#AA4499", "gagpo", credit__lam=1.0, **NEAR_MARKOV),
    "gigpo-adm": _arm("GiGPO, with admissible actions", "#44AA99", "gigpo", **NEAR_MARKOV),
    "gagpo_loo-adm": _arm("leave-one-out, with admissible actions", "#DDCC77", "gagpo_loo", **NEAR_MARKOV),
    "gagpo_graph-adm": _arm("graph values, with admissible actions", "#661100", "gagpo_graph", **NEAR_MARKOV),
    "gigpo-undivided": _arm("GiGPO, terms not divided by spreads", "#225522", "gigpo", credit__mode="mean_norm"),
    "gagpo-mc-broadcast": _arm("GAGPO, λ = 1, with GRPO's term", "#6A3D9A", "gagpo", credit__lam=1.0,
                               credit__broadcast=1.0),
}
"""Arms of estimators by state keys (../credit-observation/README.md). Those without a key have the config's.
The last two each have one part of what GiGPO has and GAGPO with λ = 1 has not."""
PEER_ARMS: dict[str, Arm] = {
    "turn_ppo": _arm("Turn-PPO", "#6699CC", "ppo", credit__values="turns", credit__gamma=0.99, credit__lam=0.9),
    "adastep": _arm("AdaStep", "#EE8866", "adastep"),
    "hgpo": _arm("HGPO", "#BBCC33", "hgpo"),
    "g2po": _arm("G²PO", "#EEDD88", "g2po"),
    "graphgpo": _arm("GraphGPO", "#FFAABB", "graphgpo"),
    "reinforce_pp": _arm("REINFORCE++", "#997700", "reinforce_pp"),
    "reinforce_pp_baseline": _arm("REINFORCE++, group baseline", "#004488", "reinforce_pp_baseline"),
    "rlvmr": _arm("RLVMR", "#BB5566", "rlvmr"),
    "turn_ppo-unclipped": _arm("Turn-PPO, values not clipped", "#117733", "ppo", credit__values="turns",
                               credit__gamma=0.99, credit__lam=0.9, critic__value_clip=100.0),
    "graphgpo-adm": _arm("GraphGPO, with admissible actions", "#CC6677", "graphgpo", **NEAR_MARKOV),
    "g2po-stay": _arm("G²PO, its authors' states", "#225555", "g2po", credit__stay=True, **NEAR_MARKOV),
    "turn_ppo-critic": _arm("Turn-PPO, critic ten times as fast", "#663333", "ppo", credit__values="turns",
                            credit__gamma=0.99, credit__lam=0.9, critic__lr=4e-3),
}
"""Arms of the other papers' estimators (../peers/README.md). `rlvmr` needs a prompt that asks for tags, and so a
cold start of its own. The last four test why Turn-PPO and GraphGPO did not train an agent, and give
G²PO states near to its authors'."""
GRAPH_ARMS: dict[str, Arm] = {
    "gagpo-state": _arm("GAGPO, on each state's scale", "#0099AA", "gagpo", credit__normalize="state"),
    "gagpo_loo-state-adm": _arm("leave-one-out, on each state's scale, with admissible actions", "#AA7700", "gagpo_loo",
                                credit__normalize="state", **NEAR_MARKOV),
    "gagpo_loo-episode-adm": _arm("leave-one-out, with GRPO's term, with admissible actions", "#774411", "gagpo_loo",
                                  credit__broadcast=1.0, **NEAR_MARKOV),
    "graft-adm": _arm("GRAFT, with admissible actions", "#3366FF", "graft", **NEAR_MARKOV),
    "crbc": _arm("CRBC", "#FF6633", "crbc"),
    "crbc-adm": _arm("CRBC, with admissible actions", "#CC0033", "crbc", **NEAR_MARKOV),
    "crbc-step-adm": _arm("CRBC without GRPO's term, with admissible actions", "#FF99BB", "crbc",
                          credit__broadcast=0.0, **NEAR_MARKOV),
    "graphhca-adm": _arm("GraphHCA, with admissible actions", "#669900", "graphhca", **NEAR_MARKOV),
}
"""Arms of the estimators on the group's graph, and of what they have and GAGPO has not (../graph-credit/README.md)."""
ARMS = FIRST_ARMS | KEY_ARMS | PEER_ARMS | GRAPH_ARMS
"""Arms by short name, in the order of tables, legends and the runs of one seed."""

MAIN = ("gagpo", "gagpo_loo", "gigpo")
"""The arms of the experiment's two main questions."""

COMPARISONS = (
    ("gagpo_loo", "gagpo"), ("gagpo", "gigpo"), ("gagpo_loo", "gigpo"), ("gagpo", "grpo"), ("gagpo", "rloo"),
    ("gagpo", "ppo"), ("gagpo", "gagpo-observation"), ("gagpo_loo-first", "gagpo"), ("gagpo_loo-first", "gigpo"),
    ("gagpo-mc", "gagpo"), ("gagpo_graph", "gigpo"), ("gagpo-adm", "gagpo"), ("gagpo-mc-adm", "gagpo-mc"),
    ("gagpo-stay", "gagpo-adm"), ("gigpo-adm", "gigpo"), ("gagpo_loo-adm", "gagpo_loo"),
    ("gagpo_graph-adm", "gagpo_graph"), ("gagpo-stay", "gagpo"), ("gagpo_loo-adm", "gagpo"),
    ("gagpo_graph-adm", "gagpo"),
)
"""Pairs (a, b) for which the table shows a - b, paired by seed."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PlannedRun:
    """One arm at one seed."""

    seed: int
    arm: str

    @property
    def name(self) -> str:
        """Returns the name of its folder, log and JSON file."""
        return f"{self.arm}-seed{self.seed}"


def chosen(names: str | None) -> list[str]:
    """Parses a comma-separated list of arms, and returns them in the order of ARMS. None: those of FIRST_ARMS that run.
    Raises UserError."""
    known = [name for name, arm in ARMS.items() if arm.runnable]
    wanted = ([name for name in FIRST_ARMS if name in known] if names is None
              else [name.strip() for name in names.split(",")])
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"there is no arm {unknown[0]!r}", f"choose among {', '.join(known)}")
    return [name for name in known if name in wanted]


def runs(arms: Iterable[str], seeds: Iterable[int]) -> list[PlannedRun]:
    """Returns all arms of the first seed, then of the next, so that a stopped experiment is balanced up to one seed."""
    arms = list(arms)
    return [PlannedRun(arm=arm, seed=seed) for seed in seeds for arm in arms]


def first_seeds(arms: Sequence[str], seeds: int | None) -> list[PlannedRun]:
    """Returns runs with the choosing seeds: `seeds` of each arm. None: as planned, with more for the MAIN arms."""
    if seeds is not None:
        return runs(arms, range(seeds))
    main = [arm for arm in arms if arm in MAIN]
    return runs(arms, range(SEEDS)) + runs(main, range(SEEDS, SEEDS + MORE_SEEDS))


def fresh_seeds(arms: Sequence[str], seeds: int | None) -> list[PlannedRun]:
    """Returns runs with the confirming seeds."""
    return runs(arms, range(CONFIRMING_SEEDS, CONFIRMING_SEEDS + (seeds or SEEDS)))


def config_of(run: PlannedRun, config: Config, *, cold_start: str) -> Config:
    """Returns the config of one run. Arms with one seed share tasks and sampling seeds, so they are paired."""
    return lay_over(config, {
        **ARMS[run.arm].overrides, "seed": run.seed, "name": run.name, "runs_dir": str(config.run_dir),
        "sft.enabled": False, "sft.file": None, "model.path": cold_start, "eval.compare_cold_start": False,
        "storage.url": None})  # the folder of a run is not kept, and an interrupted one begins again


def to_confirm(scores: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """Returns (winner, comparator) of the MAIN arms by mean score on the first seeds.

    They are the best arm and GAGPO, or GAGPO and the next best. Raises UserError if there are fewer than two arms.
    """
    ranked = sorted((arm for arm in MAIN if scores.get(arm)), key=lambda arm: -sum(scores[arm]) / len(scores[arm]))
    if len(ranked) < 2:
        raise UserError("there is no winner to confirm yet", "run the experiment first, without --confirm")
    return ranked[0], "gagpo" if "gagpo" in ranked[1:] else ranked[1]
