"""The verdict on the episode page: wasted turns, the turn that lost the episode, a better action that was admissible
there, whether its state pools unlike turns, and the lowest advantage.

Sentences are lists of parts. The template turns them into markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.explorer.filters import number, one_line, signed
from deploy.explorer.groups import Alternative, Group, ShownEpisode, StepView, alternatives, with_same_choices
from services.amounts import number_of

MOSTLY_WASTED = 0.4
"""An episode counts as lost by wasted turns if illegal and repeated turns make up at least this share."""
SEEN = 3
"""Most links to turns that took the better action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Plain text of a sentence, an action on one line, or a link to turn `t` of episode `k` (None: this episode)."""

    text: str
    action: bool = False
    t: int | None = None
    k: int | None = None
    worst: bool = False
    """Whether it links to the turn that lost the most."""


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
    illegal: Sequence[StepView] = ()
    """The turns whose answer was malformed or whose action was not admissible, if wasted turns lost the episode."""
    repeated: Sequence[StepView] = ()
    """Its other turns with the observation and the action of an earlier one, if wasted turns lost the episode."""
    pooled: tuple[int, int] | None = None
    """Number of turns in the state of `worst`, and how many of them had the same admissible actions. Set only if most
    had others."""
    flat: bool = False
    """Whether no turn lost value, since all advantages of the group are 0."""


def judge(group: Group, episode: ShownEpisode) -> EpisodeVerdict:
    """Returns the verdict on an episode. Without credit, only `illegal` and `repeated` can be set."""
    worst, last = episode.costliest, episode.steps[-1]
    lowest = min((step for step in episode.steps if step.advantage is not None),
                 key=lambda step: step.advantage or 0.0, default=None)
    illegal, repeated = _wasted(episode)
    if worst is None:
        return EpisodeVerdict(
            worst=None, lowest=lowest, illegal=illegal, repeated=repeated,
            flat=all(step.advantage == 0 for member in group.episodes for step in member.steps))
    return EpisodeVerdict(
        worst=worst, better=_better(group, worst), illegal=illegal, repeated=repeated, pooled=_pooled(group, worst),
        then=next((step for step in episode.steps if step.t == worst.t + 1), None),
        cut=last if episode.cut_off and last.cost < worst.cost else None,
        lowest=lowest)


def _wasted(episode: ShownEpisode) -> tuple[list[StepView], list[StepView]]:
    """Returns the illegal turns and the repeated ones, or none of a won episode and of one with few of them."""
    illegal = [step for step in episode.steps if not (step.valid and step.admissible)]
    seen: set[tuple[str, str]] = set()
    repeated: list[StepView] = []
    for step in episode.steps:
        if (step.observation, step.action) in seen and step.valid and step.admissible:
            repeated.append(step)
        seen.add((step.observation, step.action))
    few = len(illegal) + len(repeated) < MOSTLY_WASTED * len(episode.steps)
    return ([], []) if episode.won or few else (illegal, repeated)


def _pooled(group: Group, step: StepView) -> tuple[int, int] | None:
    """Returns the value of `pooled`. None: no admissible actions are listed, or most other turns had the same ones."""
    visits = [] if step.state is None else group.visits[step.state]
    alike = len(with_same_choices(visits, step))
    return (len(visits), alike) if 2 * (len(visits) - alike) > len(visits) - 1 else None


def _better(group: Group, step: StepView) -> Alternative | None:
    """Returns the best action that the group took where the same actions were admissible, so that it was admissible
    before this step too."""
    if step.state is None:
        return None
    visits = [visit for visit in with_same_choices(group.visits[step.state], step)
              if visit.step.valid and visit.step.admissible]
    others = [other for other in alternatives(visits, step) if not other.own]
    best = max(others, key=lambda other: other.mean_return, default=None)
    return None if best is None or best.mean_return <= (step.ret or 0.0) else best


def heading(verdict: EpisodeVerdict, episode: ShownEpisode) -> Sentence:
    """Returns the wasted turns if they lost the episode, else the turn that lost the most and its action, or [] if
    nothing was lost."""
    if verdict.illegal or verdict.repeated:
        return _wasted_turns(verdict, episode)
    if verdict.worst is None:
        return []
    return _worst_turn(verdict.worst, "Where it lost most: " if episode.won else "Where it was lost: ")


def _worst_turn(worst: StepView, words: str) -> Sentence:
    return [Part(text=words), Part(text=f"step {worst.t}", t=worst.t, worst=True), Part(text=", "),
            Part(text=one_line(worst.action), action=True)]


def _wasted_turns(verdict: EpisodeVerdict, episode: ShownEpisode) -> Sentence:
    """Returns how many turns were wasted, with the first of each kind."""
    parts: Sentence = [Part(text=f"{len(verdict.illegal) + len(verdict.repeated)} of {len(episode.steps)} steps were "
                                 "wasted: ")]
    for steps, how in ((verdict.illegal, "not admissible or malformed"),
                       (verdict.repeated, "repeated an earlier step")):
        if steps:
            parts += [Part(text=f"{', ' if len(parts) > 1 else ''}{len(steps)} {how} ("),
                      Part(text=f"step {steps[0].t}", t=steps[0].t), Part(text=", "),
                      Part(text=one_line(steps[0].action), action=True), Part(text=")")]
    return [*parts, Part(text=".")]


def sentences(verdict: EpisodeVerdict, episode: ShownEpisode) -> list[Sentence]:
    """Returns the sentences after the heading. The first one continues a heading that names the turn that lost most."""
    worst, cut, lowest = verdict.worst, verdict.cut, verdict.lowest
    if verdict.flat:
        return [_plain("All episodes of this group earned the same, so A = 0 everywhere: they taught nothing.")]
    if worst is None:
        nothing = _plain("No step of this episode lost anything: each was at least as good as its state is on average.")
        if lowest is None or (lowest.advantage or 0.0) >= 0:
            return [nothing]
        return [nothing, _lowest(lowest, "its Â is below the mean" if lowest.valid else "its answer was malformed")]
    texts = [_plain(_cost(verdict, worst, episode)), _choice(verdict, worst)]
    if verdict.illegal or verdict.repeated:
        texts[0] = [*_worst_turn(worst, "Most value was lost at "), Part(text=" "), *texts[0]]
    if verdict.pooled is not None:
        texts.append(_plain(_pooling(*verdict.pooled)))
    if cut is not None:
        texts.append([Part(text="At "), Part(text=f"step {cut.t}", t=cut.t), Part(
            text=f" the episode was cut off in a state worth {number(cut.value, 2)}, whatever was done there: "
                 f"δ = {signed(cut.delta, 2)}.")])
    if lowest is not None and lowest.t not in (worst.t, cut.t if cut else None):
        texts.append(_lowest(lowest, "it also answers for what came after it"))
    return texts


def _lowest(step: StepView, why: str) -> Sentence:
    return [Part(text="The lowest advantage is that of "), Part(text=f"step {step.t}", t=step.t),
            Part(text=f", A = {signed(step.advantage, 2)}: {why}.")]


def _plain(text: str) -> Sentence:
    return [Part(text=text)]


def _cost(verdict: EpisodeVerdict, worst: StepView, episode: ShownEpisode) -> str:
    advantage = f"A = {signed(worst.advantage, 2)}."
    if worst.delta is None:
        return f"— advantage {advantage}"
    if verdict.then is not None:
        after = f"the next one {number(verdict.then.value, 2)}"
    else:
        after = ("and there the episode was cut off, whatever was done" if episode.cut_off else
                 "and the episode ended there")
    return f"— its state was worth V̄ = {number(worst.value, 2)}, {after}: δ = {signed(worst.delta, 2)}, {advantage}"


def _pooling(visits: int, alike: int) -> str:
    """Says that V̄ of a state is a mean over unlike turns."""
    return (f"Of the {visits} steps in that state, {visits - alike} had other admissible actions, so V̄ and δ are about "
            "unlike situations: learner.credit.state_key=observation+admissible tells them apart.")


def _choice(verdict: EpisodeVerdict, worst: StepView) -> Sentence:
    better = verdict.better
    illegal = "" if worst.valid and worst.admissible else (
        "Its action was not admissible there. " if worst.valid else "Its answer was malformed. ")
    if better is None:
        alike = "" if verdict.pooled is None else " with the same admissible actions"
        return _plain(f"{illegal}No other action from that state{alike} did better in this group.")
    count = len(better.visits)
    start = [Part(text=f"{illegal}From the same state "), Part(text=one_line(better.action), action=True), Part(
        text=f" earned {number(better.mean_return, 2)} on average ({number_of(count, 'step')}, "
             f"here {number(worst.ret, 2)}): see ")]
    links = [Part(text=f"episode {visit.k}, step {visit.step.t}", k=visit.k, t=visit.step.t)
             for visit in better.visits[:SEEN]]
    return [*start, *_joined(links), Part(text=".")]


def _joined(links: Sequence[Part]) -> Sentence:
    return [part for i, link in enumerate(links) for part in ([Part(text=", ")] if i else []) + [link]]
