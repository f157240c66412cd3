"""A log-linear policy over hand-made features of ALFWorld's actions: small enough that a run takes seconds of CPU.

    π(a | h) = exp(θ·φ(h, a)) / Σ_b exp(θ·φ(h, b))

The candidates are the admissible actions and up to two plausible inadmissible ones: taking the wanted object from a
place where it may not be, and going to the place where the agent already is. So the policy can waste a turn on "Nothing
happens.", as language models do. A feature combines a description of the action with one part of the agent's memory, or
with all of it. Features are hashed into DIMENSIONS weights.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from envservice.alfworld.memory import kind_of, parse_task
from envservice.alfworld.prompts import choices, task_of
from envservice.alfworld.teacher import Searcher
from envservice.base import Outcome, Session

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DIMENSIONS = 1 << 14
HORIZON = 50
KINDS = ("clean", "cool", "heat", "look", "pick", "two")
"""Kinds of task, as parse_task names them."""
MACHINES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
NOTHING = "Nothing happens."
_ARRIVED = re.compile(r"You arrive at (?:the )?(\w+ \d+)\.|You are facing the (\w+ \d+)\.")
_NAME = re.compile(r"\w+ \d+")
_NUMBER = re.compile(r"\d+")
NOWHERE = "99"
"""A number that no object has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Ways in which the policy can be more like a small language model: what it sees, and whether its actions slip."""

    memory: bool = True
    """Whether features know the agent's memory, or only the task, the observation's beginning and the last actions."""
    slips: bool = False
    """Whether each action with a number has a twin with a number that no object has. Both have the same features, so
    about half of all turns change nothing, whatever is learnt."""


WITH_MEMORY = Rules()


@dataclass(slots=True, kw_only=True)
class Memory:
    """The agent's memory of an episode, updated from the observations."""

    type: str
    kind: str
    """Kind of the wanted object, such as `mug`."""
    target: str
    """Kind of the receptacle to put it into, or of the lamp for `look`."""
    here: str = ""
    holding: bool = False
    treated: bool = False
    placed: int = 0
    visits: Counter[str] = field(default_factory=Counter[str])
    last: deque[str] = field(default_factory=lambda: deque[str](maxlen=3))

    @staticmethod
    def of(first: Outcome) -> Memory:
        """Returns the memory at the start of an episode."""
        kind, thing, target = parse_task(task_of(first))
        return Memory(type=kind, kind=thing, target=target)

    def read(self, action: str, now: Outcome) -> None:
        """Updates the memory with one turn."""
        self.last.append(action)
        if now.observation.startswith(NOTHING):
            return
        if found := _ARRIVED.search(now.observation):
            self.here = found[1] or found[2]
            self.visits[self.here] += 1
        verb, _, rest = action.partition(" ")
        sought = kind_of(_first_name(rest)) == self.kind
        if verb == "take" and sought:
            self.holding, self.treated = True, False
        elif verb == "move" and sought:
            self.placed += kind_of(rest.rpartition(" to ")[2]) == self.target
            self.holding = False
        elif verb in MACHINES and sought:
            self.treated = verb == self.type


def _first_name(words: str) -> str:
    found = _NAME.search(words)
    return found[0] if found else ""


def candidates(memory: Memory, now: Outcome) -> list[str]:
    """Returns the actions that the policy chooses among, in a fixed order."""
    listed = choices(now)
    extra = [f"go to {memory.here}", f"take {memory.kind} 1 from {memory.here}"] if memory.here else []
    return listed + [action for action in extra if action not in now.admissible_actions]


def choice(memory: Memory, now: Outcome, rules: Rules) -> tuple[list[str], Ints]:
    """Returns the candidates, and the indices of each one's features, [A, F]."""
    actions = candidates(memory, now)
    found = (features if rules.memory else memoryless_features)(memory, now, actions)
    if not rules.slips:
        return actions, found
    numbered = [i for i, action in enumerate(actions) if _NUMBER.search(action)]
    return [*actions, *(_NUMBER.sub(NOWHERE, actions[i]) for i in numbered)], np.concatenate([found, found[numbered]])


def memoryless_features(memory: Memory, now: Outcome, actions: Sequence[str]) -> Ints:
    """Returns the indices of each action's features for a policy without memory, [A, F]."""
    listed, last, begins = set(now.admissible_actions), memory.last, " ".join(now.observation.split()[:2])
    before = last[-1].partition(" ")[0] if last else ""
    goal = memory.type, memory.kind, memory.target
    rows = [_memoryless(_about(goal, action, action in listed), kind_of(_place(action)), begins, action in last, before)
            for action in actions]
    return np.frombuffer(b"".join(rows), dtype=np.int64).reshape(len(actions), -1)


def features(memory: Memory, now: Outcome, actions: Sequence[str]) -> Ints:
    """Returns the indices of each action's features, [A, F]."""
    listed, last = set(now.admissible_actions), memory.last
    held = (memory.holding, memory.treated, min(memory.placed, 1))
    known = _known((memory.type, memory.kind, memory.target), held)
    seen = {place: min(visits, 2) for place, visits in memory.visits.items()}
    rows = b"".join([known[action, action in listed, seen.get(_place(action), 0), action in last]
                     for action in actions])
    return np.frombuffer(rows, dtype=np.int64).reshape(len(actions), -1)


@lru_cache(maxsize=1 << 16)
def _place(action: str) -> str:
    """Returns the last name in an action, such as `shelf 1`; "" if it has none."""
    names = _NAME.findall(action.partition(" ")[2])
    return names[-1] if names else ""


class _Rows(dict[tuple[str, bool, int, bool], bytes]):
    """Rows of indices, int64 as bytes, by (action, whether it is admissible, visits, whether it is among the last)."""

    def __init__(self, goal: tuple[str, str, str], held: tuple[bool, bool, int]) -> None:
        super().__init__()
        self._goal, self._held = goal, held

    def __missing__(self, key: tuple[str, bool, int, bool]) -> bytes:
        action, listed, seen, again = key
        row = self[key] = _indices(_about(self._goal, action, listed), self._held, seen, again, kind_of(_place(action)))
        return row


def _about(goal: tuple[str, str, str], action: str, listed: bool) -> tuple[object, ...]:
    """Describes an action by task, verb, and what its objects are to the goal."""
    (task, wanted, target), (verb, _, rest) = goal, action.partition(" ")
    place = kind_of(_place(action))
    return (task, verb, any(kind_of(name) == wanted for name in _NAME.findall(rest)), place == target,
            place == MACHINES.get(task), listed)


@lru_cache(maxsize=1 << 12)
def _known(goal: tuple[str, str, str], held: tuple[bool, bool, int]) -> _Rows:
    return _Rows(goal, held)


@lru_cache(maxsize=1 << 18)
def _indices(about: tuple[object, ...], held: tuple[bool, bool, int], seen: int, again: bool, place: str) -> bytes:
    """Returns the indices, [F]. Actions that differ in numbers alone share them, so few are hashed."""
    return _hashed((("a", *about), ("h", *about, *held), ("v", *about, seen), ("l", *about, again),
                    ("hv", *about, *held, seen, again), ("p", *about[:2], place, held[0])))


@lru_cache(maxsize=1 << 18)
def _memoryless(about: tuple[object, ...], place: str, begins: str, again: bool, before: str) -> bytes:
    """Returns the indices, [F]. `begins`: the observation's first words; `before`: the verb of the last action."""
    return _hashed((("a", *about), ("o", *about, begins), ("l", *about, again), ("ol", *about, begins, again),
                    ("p", *about[:2], place), ("b", *about, before)))


def _hashed(crossed: Sequence[tuple[object, ...]]) -> bytes:
    return np.array([zlib.crc32("\x1f".join(map(str, parts)).encode()) % DIMENSIONS for parts in crossed],
                    dtype=np.int64).tobytes()


def inadmissible_features() -> list[int]:
    """Returns the index of each feature that an inadmissible candidate has whatever the agent remembers."""
    either = (False, True)
    abouts = ((*about, False) for about in product(KINDS, ("go", "take"), either, either, either))
    rows = (_indices(about, (False, False, 0), 0, False, "") for about in abouts)
    return sorted({int(np.frombuffer(row, np.int64)[0]) for row in rows})


@dataclass(slots=True, kw_only=True)
class Decision:
    """One decision: the features of the candidates, their probabilities, and the one that was taken."""

    observation: str
    admissible: tuple[str, ...]
    features: Ints
    """Indices of the features of the candidates, [A, F]."""
    probabilities: Floats
    """Probabilities of the candidates, [A]."""
    chosen: int
    action: str = ""
    """The text of the chosen candidate."""
    changed: bool
    """False if the action changed nothing: "Nothing happens." and the same admissible actions."""


@dataclass(slots=True, kw_only=True)
class Play:
    """One episode of the policy."""

    turns: list[Decision]
    won: bool


def play(session: Session, theta: Floats, rng: random.Random, rules: Rules) -> Play:
    """Plays one episode of at most HORIZON turns. Each turn draws exactly one number from `rng`."""
    now = session.reset()
    memory, turns = Memory.of(now), []
    while len(turns) < HORIZON and not now.done:
        actions, found = choice(memory, now, rules)
        p = probabilities(theta, found)
        chosen = min(int(np.searchsorted(np.cumsum(p), rng.random() * float(p.sum()), side="right")), len(p) - 1)
        before, now = now, session.step(actions[chosen])
        changed = not (now.observation.startswith(NOTHING) and now.admissible_actions == before.admissible_actions)
        turns.append(Decision(observation=before.observation, admissible=tuple(before.admissible_actions),
                              features=found, probabilities=p, chosen=chosen, action=actions[chosen],
                              changed=changed))
        memory.read(actions[chosen], now)
    return Play(turns=turns, won=now.won)


def probabilities(theta: Floats, found: Ints) -> Floats:
    """Returns the softmax of the sums of weights, [A]."""
    logits = theta[found].sum(axis=1)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def score_gradient(turn: Decision, weight: float, out: Floats) -> None:
    """Adds weight · ∇ log π(chosen) to `out` [DIMENSIONS]."""
    np.add.at(out, turn.features[turn.chosen], weight)
    np.add.at(out, turn.features, -weight * turn.probabilities[:, None])


def score_entries(turns: Sequence[Decision]) -> tuple[Ints, Floats, Ints]:
    """Returns ∇ log π(chosen) = Σ_a (1[a is chosen] - π(a)) φ(a) of all turns as entries [n]: weight, value, turn."""
    shares = [-turn.probabilities for turn in turns]
    for turn, share in zip(turns, shares, strict=True):
        share[turn.chosen] += 1
    entries = [turn.features.size for turn in turns]
    return (np.concatenate([turn.features.ravel() for turn in turns]),
            np.concatenate([np.repeat(share, turn.features.shape[1])
                            for turn, share in zip(turns, shares, strict=True)]),
            np.repeat(np.arange(len(turns)), entries))


def demonstrate(session: Session, rng: random.Random, rules: Rules) -> list[Decision]:
    """Returns the scripted searcher's episode as decisions, without the turns whose action is not a candidate."""
    now = session.reset()
    memory, searcher, turns = Memory.of(now), Searcher(now, jump=0.1, rng=rng), []
    while len(turns) < HORIZON and not now.done:
        actions, found = choice(memory, now, rules)
        action = searcher.act(now).action
        if action in actions:
            turns.append(Decision(observation=now.observation, admissible=tuple(now.admissible_actions), features=found,
                              probabilities=np.full(len(actions), 1 / len(actions)), chosen=actions.index(action),
                              action=action, changed=True))
        now = session.step(action)
        memory.read(action, now)
    return turns
