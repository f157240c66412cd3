"""The verdict on the episode page: the turn that lost the episode, a better action, and the lowest advantage.

Sentences are lists of parts. The template turns them into markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.explorer.filters import number, one_line, signed
from deploy.explorer.groups import Alternative, Group, ShownEpisode, StepView, alternatives
from services.amounts import number_of

SEEN = 3
"""Most links to turns that took the better action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Plain text of a sentence, an action on one line, or a link to turn `t` of episode `k` (None: this episode)."""

    text: str
    action: bool = False
    t: int | None = None
    k: int | None = None


Sentence = list[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeVerdict:
    """The findings about an episode."""

    worst: StepView | None
    """The turn that lost the most value."""
    then: StepView | None = None
    """The turn after it."""
    better: Alternative | None = None
    """The group's best action from the same state, if it earned more."""
    cut: StepView | None = None
    """The last turn, if the cut there cost more than any action."""
    lowest: StepView | None = None
    """The turn with the lowest advantage."""
    flat: bool = False
    """Whether no turn lost value, since all advantages of the group are 0."""


def judge(group: Group, episode: ShownEpisode) -> EpisodeVerdict:
    """Returns the verdict on an episode. Without credit, no field is set."""
    worst, last = episode.costliest, episode.steps[-1]
    lowest = min((step for step in episode.steps if step.advantage is not None),
                 key=lambda step: step.advantage or 0.0, default=None)
    if worst is None:
        return EpisodeVerdict(
            worst=None, lowest=lowest,
            flat=all(step.advantage == 0 for member in group.episodes for step in member.steps))
    return EpisodeVerdict(
        worst=worst, better=_better(group, worst),
        then=next((step for step in episode.steps if step.t == worst.t + 1), None),
        cut=last if episode.cut_off and last.cost < worst.cost else None,
        lowest=lowest)


def _better(group: Group, step: StepView) -> Alternative | None:
    if step.state is None:
        return None
    others = [other for other in alternatives(group.visits[step.state], step) if not other.own]
    best = max(others, key=lambda other: other.mean_return, default=None)
    return None if best is None or best.mean_return <= (step.ret or 0.0) else best


def heading(found: EpisodeVerdict, episode: ShownEpisode) -> Sentence:
    """Returns the turn that lost the most and its action, or [] if nothing was lost."""
    if found.worst is None:
        return []
    return [Part(text=f"Where it {'lost most' if episode.won else 'was lost'}: "),
            Part(text=f"step {found.worst.t}", t=found.worst.t), Part(text=", "),
            Part(text=one_line(found.worst.action), action=True)]


def sentences(found: EpisodeVerdict, episode: ShownEpisode) -> list[Sentence]:
    """Returns the sentences after the heading, which the first one continues, or which say that nothing was lost."""
    worst, cut, lowest = found.worst, found.cut, found.lowest
    if found.flat:
        return [_plain("All episodes of this group earned the same, so A = 0 everywhere: they taught nothing.")]
    if worst is None:
        nothing = _plain("No step of this episode lost anything: each was at least as good as its state is on average.")
        if lowest is None or (lowest.advantage or 0.0) >= 0:
            return [nothing]
        return [nothing, _lowest(lowest, "its Â is below the mean" if lowest.valid else "its answer was malformed")]
    said = [_plain(_cost(found, worst, episode)), _choice(found, worst)]
    if cut is not None:
        said.append([Part(text="At "), Part(text=f"step {cut.t}", t=cut.t), Part(
            text=f" the episode was cut off in a state worth {number(cut.value, 2)}, whatever was done there: "
                 f"δ = {signed(cut.delta, 2)}.")])
    if lowest is not None and lowest.t not in (worst.t, cut.t if cut else None):
        said.append(_lowest(lowest, "it also answers for what came after it"))
    return said


def _lowest(step: StepView, why: str) -> Sentence:
    return [Part(text="The lowest advantage is that of "), Part(text=f"step {step.t}", t=step.t),
            Part(text=f", A = {signed(step.advantage, 2)}: {why}.")]


def _plain(text: str) -> Sentence:
    return [Part(text=text)]


def _cost(found: EpisodeVerdict, worst: StepView, episode: ShownEpisode) -> str:
    advantage = f"A = {signed(worst.advantage, 2)}."
    if worst.delta is None:
        return f"— advantage {advantage}"
    if found.then is not None:
        after = f"the next one {number(found.then.value, 2)}"
    else:
        after = ("and there the episode was cut off, whatever was done" if episode.cut_off else
                 "and the episode ended there")
    return f"— its state was worth V̄ = {number(worst.value, 2)}, {after}: δ = {signed(worst.delta, 2)}, {advantage}"


def _choice(found: EpisodeVerdict, worst: StepView) -> Sentence:
    better = found.better
    if better is None:
        return _plain("No other action from that state did better in this group.")
    count = len(better.visits)
    said = [Part(text="From the same state "), Part(text=one_line(better.action), action=True), Part(
        text=f" went on to earn {number(better.mean_return, 2)} on average ({number_of(count, 'step')}, "
             f"here {number(worst.ret, 2)}): see ")]
    links = [Part(text=f"episode {visit.k}, step {visit.step.t}", k=visit.k, t=visit.step.t)
             for visit in better.visits[:SEEN]]
    return [*said, *_joined(links), Part(text=".")]


def _joined(links: Sequence[Part]) -> Sentence:
    return [part for i, link in enumerate(links) for part in ([Part(text=", ")] if i else []) + [link]]
