"""Step-level credit of one learner step, from texts to advantages, against a direct implementation of the formulas.

The input is 16 groups of 8 episodes of 50 steps, with texts like ALFWorld's: places in a room, and "Nothing happens."
Ours uses the learner's code (learner/rows/batch.py: state keys, estimator, batch hook) with every estimator that needs
no critic. Graph values are timed a second time on groups in which most states belong to one episode, as under a key
that tells states apart. The reference is the usual direct code: for each step it compares the texts of the whole group,
with numpy on small arrays; for GRAFT it sweeps over the states until their values stay, as its paper does. Both compute
all groups; GAGPO, GiGPO and GRAFT must agree. Times are CPU times of one core.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from lab.bench.figures import Figure, Report, silent
from learner.credit.registry import ESTIMATORS, make_options
from learner.rows.batch import assign_credit, credit_steps
from services.records import Episode, Step, Ticket
from services.seeds import seed_for

_GROUPS = 16
_EPISODES = 8
_STEPS = 50
_PLACES = 24
_OWN_SHARE = 0.4
_OWN_PLACES = 22
"""With these, a group has about 180 states of which 25 are shared; with `observation+admissible` on ALFWorld's games,
groups of a weak policy have about 180, and 37 are shared."""
_ON_GRAPHS = ("gagpo_graph", "graft", "crbc", "graphhca")
_REPEATS = 15
"""Number of measurements whose median is taken. The reference is slow, so three are enough for it."""
_KINDS = ("cabinet", "drawer", "shelf", "countertop")
_THINGS = ("mug", "apple", "knife", "plate", "bowl", "spoon", "tomato", "pan")

Rows = list[list[float]]
T = TypeVar("T")


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in a few seconds."""
    groups = [_group(number) for number in range(_GROUPS)]
    figures: list[Figure] = []
    names = [name for name, each in ESTIMATORS.items() if not each.needs_critic]
    for number, name in enumerate(names):
        report(name, number, len(names))
        options = make_options(name)
        credits, ours = _timed(lambda options=options: assign_credit(groups, options), _REPEATS)
        if name not in _REFERENCES:
            figures.append(Figure(name=name, value=1000 * ours, unit="ms"))
            continue
        direct = _REFERENCES[name]
        rows, theirs = _timed(lambda direct=direct, options=options: [direct(group, options) for group in groups], 3)
        figures.append(Figure(name=name, value=1000 * ours, unit="ms", reference=1000 * theirs, ratio=theirs / ours))
        difference = max(np.abs(np.subtract(a, b)).max() for credit, expected in zip(credits, rows, strict=True)
                         for a, b in zip(credit.advantages, expected, strict=True))
        figures.append(Figure(name=f"{name}, largest difference", value=float(difference), unit="of an advantage"))
    apart = [_group(number, own_share=_OWN_SHARE) for number in range(_GROUPS)]
    for name in _ON_GRAPHS:
        _, many = _timed(lambda name=name: assign_credit(apart, make_options(name)), _REPEATS)
        figures.append(Figure(name=f"{name}, many states", value=1000 * many, unit="ms"))
    _, keys = _timed(lambda: [credit_steps(group, make_options()) for group in groups], _REPEATS)
    return [*figures, Figure(name="of each, keys and records", value=1000 * keys, unit="ms")]


def _timed(work: Callable[[], T], repeats: int) -> tuple[T, float]:
    """Returns the result of `work` and the median of its CPU seconds."""
    seconds: list[float] = []
    for _ in range(repeats - 1):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    begun = time.process_time()
    result = work()
    return result, statistics.median([*seconds, time.process_time() - begun])


def _group(number: int, *, own_share: float = 0.0) -> list[Episode]:
    """Makes one group: half of the episodes are won at the last step, 5% of steps are malformed. No text object is
    shared, as after decoding. `own_share` of the steps have a text that only their episode has."""
    rng = random.Random(seed_for("bench", "credit", number))
    places = [f"{rng.choice(_KINDS)} {i}" for i in range(_PLACES)]
    texts = ["You arrive at {0}. On the {0}, you see {1}.".format(
        place, ", ".join(f"a {rng.choice(_THINGS)} {n}" for n in range(1, 1 + rng.randint(1, 4)))) for place in places]
    banner = ("You are in the middle of a room. Looking quickly around you, you see "
              f"{', '.join(f'a {place}' for place in places)}.\n\nYour task is to: put a mug in {places[-1]}.")
    return [_episode(rng, number, k, [banner, *texts], own_share) for k in range(_EPISODES)]


def _episode(rng: random.Random, number: int, k: int, texts: Sequence[str], own_share: float) -> Episode:
    seen = [texts[0], *(rng.choice(texts[1:]) if rng.random() < 0.8 else "Nothing happens." for _ in range(1, _STEPS))]
    if own_share:
        seen = [f"{text} You carry thing {k}-{rng.randrange(_OWN_PLACES)}." if rng.random() < own_share else text
                for text in seen]
    won = rng.random() < 0.5
    ids = np.zeros(16, np.int32)
    steps = [Step(observation=text.encode().decode(), prompt_ids=ids, response_ids=ids[:rng.randint(4, 16)],
                  logprobs=ids[:0], spans=[], action="look", valid=rng.random() >= 0.05, admissible=True,
                  reward=10.0 if won and t == _STEPS - 1 else 0.0) for t, text in enumerate(seen)]
    ticket = Ticket(group=f"train/{number:08d}", k=k, size=_EPISODES, task=f"bench/train/{number}", seed=0,
                    kind="train", temperature=1.0, max_steps=_STEPS)
    return Episode(ticket=ticket, steps=steps, won=won, end="won" if won else "turns", worker="", attempt=0,
                   seconds=0.0, engine="")


def _returns(group: Sequence[Episode], gamma: float) -> Rows:
    rows: Rows = []
    for episode in group:
        row, total = [0.0] * len(episode.steps), 0.0
        for t in reversed(range(len(row))):
            total = row[t] = episode.steps[t].reward + gamma * total
        rows.append(row)
    return rows


def _peers(group: Sequence[Episode], rows: Rows, text: str) -> np.ndarray:
    """Returns the indices of all steps of the group whose observation is this text."""
    return np.array([x for episode, row in zip(group, rows, strict=True)
                     for step, x in zip(episode.steps, row, strict=True) if step.observation == text])


def _direct_gagpo(group: Sequence[Episode], options: Any) -> Rows:
    rows = _returns(group, options.gamma)
    raw: Rows = []
    for episode in group:
        values = [_peers(group, rows, step.observation).mean() for step in episode.steps] + [0.0]
        credit, total = [0.0] * len(episode.steps), 0.0
        for t in reversed(range(len(credit))):
            delta = episode.steps[t].reward + options.gamma * values[t + 1] - values[t]
            total = credit[t] = delta + options.gamma * options.lam * total
        raw.append([a - options.penalty * (not step.valid) for a, step in zip(credit, episode.steps, strict=True)])
    everything = np.concatenate(raw)
    return [list((np.array(row) - everything.mean()) / (everything.std(ddof=1) + 1e-6)) for row in raw]


def _direct_gigpo(group: Sequence[Episode], options: Any) -> Rows:
    penalties = [[options.penalty * (not step.valid) for step in episode.steps] for episode in group]
    scores = [[episode.total_reward - p for p in row] for episode, row in zip(group, penalties, strict=True)]
    rows = [[x - p for x, p in zip(*pair, strict=True)]
            for pair in zip(_returns(group, options.gamma), penalties, strict=True)]
    everything = np.concatenate(scores)
    out: Rows = []
    for episode, row, score in zip(group, rows, scores, strict=True):
        credit: list[float] = []
        for step, x, s in zip(episode.steps, row, score, strict=True):
            peers = _peers(group, rows, step.observation)
            apart = (x - peers.mean()) / (peers.std(ddof=1) + 1e-6) if len(peers) > 1 else 0.0
            credit.append((s - everything.mean()) / (everything.std(ddof=1) + 1e-6) + options.omega * apart)
        out.append(credit)
    return out


def _direct_graft(group: Sequence[Episode], options: Any) -> Rows:
    led: dict[str, list[str | float]] = {}
    paths: list[list[tuple[str, str | float]]] = []
    for episode in group:
        texts = [step.observation for step in episode.steps]
        paths.append(list(zip(texts, [*texts[1:], float(episode.won)], strict=True)))
        for state, then in paths[-1]:
            led.setdefault(state, []).append(then)
    values = dict.fromkeys(led, 0.0)

    def worth(then: str | float) -> float:
        return values[then] if isinstance(then, str) else then

    change = 1.0
    while change > 1e-13:
        change = 0.0
        for state, thens in led.items():
            value = options.gamma * sum(map(worth, thens)) / len(thens)
            change, values[state] = max(change, abs(value - values[state])), value
    deltas = [[options.gamma * worth(then) - values[state] for state, then in path] for path in paths]
    out: Rows = []
    for episode, row in zip(group, deltas, strict=True):
        credit: list[float] = []
        for step, x in zip(episode.steps, row, strict=True):
            peers = _peers(group, deltas, step.observation)
            apart = (x - peers.mean()) / (peers.std(ddof=1) + 1e-6) if np.ptp(peers) > 1e-9 else 0.0
            credit.append(apart - options.penalty * (not step.valid))
        out.append(credit)
    return out


_REFERENCES: dict[str, Callable[[Sequence[Episode], Any], Rows]] = {
    "gagpo": _direct_gagpo,
    "gigpo": _direct_gigpo,
    "graft": _direct_graft,
}
