"""How the numbers of a step come about: the estimator explains them, from the numbers of the archive.

A line is shown only if it gives the archive's number again. A line of a number that the archive does not have, such as
AdaStep's weight, is shown with the line after it, which uses it. What the archive does not hold (the state that an
episode was cut off in, other groups of the learner step) costs a line in this way, so no page shows a sum that is not
the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING

from deploy.explorer.groups import Group, ShownEpisode, StepView
from services.config.tree import CreditSection

if TYPE_CHECKING:
    from learner.credit.explanation import CalculationLine

TOLERANCE = 1e-6


def calculation(group: Group, episode: ShownEpisode, options: CreditSection | None) -> list[list[str]]:
    """For each step of the episode its lines: V̄, δ, Â and A, as far as they can be worked out from its group.

    Raises UserError if an estimator of the user's own fails to explain them.
    """
    from learner.credit.explanation import ADVANTAGE, DELTA, RAW, VALUE
    from learner.credit.returned_texts import explanation_of
    from learner.credit.types import Credit, CreditStep

    if not group.has_credit or options is None:
        return [[] for _ in episode.steps]
    steps = [[CreditStep(state=step.state or "", reward=step.reward, invalid=not step.valid, tokens=len(step.tokens),
                         action=step.action, admissible=step.admissible, tag=step.tag or "")
              for step in other.steps] for other in group.episodes]
    credit = Credit(
        returns=_column(group, lambda step: step.ret), values=None, baselines=_column(group, lambda step: step.value),
        deltas=_column(group, lambda step: step.delta), raw_advantages=_column(group, lambda step: step.raw),
        advantages=_column(group, lambda step: step.advantage),
        states=[[step.state for step in row] for row in steps])
    explained = explanation_of(steps, credit, options, group.episodes.index(episode))
    shown: list[list[str]] = []
    for step, lines in zip(episode.steps, explained, strict=True):
        archived = {VALUE: step.value, DELTA: step.delta, RAW: step.raw, ADVANTAGE: step.advantage}
        shown.append(_agreeing(lines, archived))
    return shown


def _agreeing(lines: Sequence[CalculationLine], archived: Mapping[str, float | None]) -> list[str]:
    """Returns the lines that give the archive's numbers again, each after those of numbers that only it uses."""
    agreeing: list[str] = []
    before: list[str] = []
    for line in lines:
        before.append(str(line))
        if line.symbol in archived:
            known = archived[line.symbol]
            agreeing += before if known is not None and abs(line.result - known) < TOLERANCE else []
            before = []
    return agreeing


def _column(group: Group, number: Callable[[StepView], float | None]) -> list[list[float]]:
    """[episode][step]; what the archive does not hold is not a number, and no line that needs it agrees with it."""
    return [[nan if (found := number(step)) is None else found for step in episode.steps]
            for episode in group.episodes]
