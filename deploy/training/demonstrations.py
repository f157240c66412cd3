"""The answers that a cold start imitates: those of a scripted player on the training games, or those of a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from deploy.console.plain import Pace
from services.amounts import number_of
from services.config.tree import Config
from services.errors import EnvFault, UserError, described
from services.patience import until_answered
from services.seeds import seed_for

if TYPE_CHECKING:
    from envservice.base import Environment, PromptTemplate
    from envservice.spec import Teacher
    from learner.cold_start.sft_data import Example
    from rollout.demonstrations import Demonstration

_REPORT_SECONDS = 5.0

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Examples to train on, and their counts. They are of the scripted player on the training games, or of a file."""

    examples: list[Example]
    split: str
    """`file` for the trajectories of sft.file."""
    digest: str
    """Digest over the contents of the split's games, or of the file."""
    games: int
    episodes: int
    won: int
    seconds: float
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Games that could not be shown, with the reason. They are left out."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts that sft.json records."""
        return {"split": self.split, "digest": self.digest, "games": self.games, "episodes": self.episodes,
                "won": self.won, "rows": len(self.examples), "seconds": round(self.seconds, 1)}


def shown_to(config: Config, template: PromptTemplate, *, seed: int, report: Report, passing: Report) -> Demonstrations:
    """Returns the examples of sft.file, or new demonstrations without one. Raises UserError if there are none.

    `passing` takes lines about the progress.
    """
    from envservice.registry import find_teacher, open_environment
    from learner.cold_start.trajectories import read_trajectories

    if config.sft.file is None:
        shown = demonstrations(config, open_environment(config.env), find_teacher(config.env), template, seed=seed,
                               report=passing)
        report(f"demonstrations: {number_of(shown.episodes, 'episode')} on {number_of(shown.games, 'training game')}, "
               f"{shown.won / max(1, shown.episodes):.0%} won, {shown.seconds:.0f} s")
        for task, reason in list(shown.failed.items())[:1]:
            report(f"left out: {number_of(len(shown.failed), 'game')} that failed, such as {task} ({reason})")
        if not shown.examples:
            raise UserError(f"there is nothing to imitate: the scripted player of {config.env.name} won {shown.won} of "
                            f"{shown.episodes} episodes, and only steps of won ones are shown",
                            "raise env.max_steps, lower sft.noise, or correct the player; or set sft.file")
        return shown
    found = read_trajectories(config.sft.file, chat=template.chat)
    report(f"demonstrations: {number_of(found.episodes, 'episode')} with {number_of(len(found.examples), 'answer')} in "
           f"{config.sft.file}")
    return Demonstrations(examples=found.examples, split="file", digest=found.digest, games=0, episodes=found.episodes,
                          won=0, seconds=0.0)


def demonstrations(
    config: Config, environment: Environment, teacher: Teacher, template: PromptTemplate, *, seed: int, report: Report
) -> Demonstrations:
    """Plays sft.demos_per_game episodes of every training game. Examples are the steps of won episodes without noise,
    and the judgements that these episodes show.

    A game that fails is left out, as RL leaves it out. Every second episode is played in disguise (other names for
    objects), if the environment's teacher offers that. Raises UserError, and EnvFault if all games fail.
    """
    from envservice.registry import find_spec
    from rollout.demonstrations import demonstrate

    stops = find_spec(config.env.name).stops
    start = reported = time.monotonic()
    pace = Pace()
    split = environment.training_splits()[0]
    tasks = environment.tasks(split)
    examples: list[Example] = []
    failed: dict[str, str] = {}
    episodes = won = 0
    for task in tasks:
        for k in range(config.sft.demos_per_game):
            play = partial(demonstrate, environment, task, teacher=teacher, template=template, seed=seed_for(seed, k),
                           sft=config.sft, max_steps=config.env.max_steps, disguised=k % 2 == 1)
            try:
                shown = until_answered(play, config.env.outage_seconds, report)
            except UserError:
                raise
            except Exception as error:  # the code of an environment of the user's own may raise anything
                failed[task] = str(error) if isinstance(error, EnvFault) else described(error)
                break
            episodes, won = episodes + 1, won + shown.won
            examples.extend(_examples(shown, template, stops))
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                report(pace.at("demonstrations:", episodes, config.sft.demos_per_game * len(tasks), "episodes"))
    if not episodes:
        raise EnvFault(f"none of the {len(tasks)} games could be shown: {failed[tasks[0]]}")
    return Demonstrations(examples=examples, split=split, digest=environment.digest(split),
                          games=len(tasks) - len(failed), episodes=episodes, won=won,
                          seconds=time.monotonic() - start, failed=failed)


def _examples(shown: Demonstration, template: PromptTemplate, stops: Sequence[str]) -> list[Example]:
    from learner.cold_start.sft_data import Example
    from rollout.judge_prompt import question, shown_answer
    from services.records import verdict_of

    if not shown.won:
        return []
    chat = template.chat
    acted = [Example(prompt=step.prompt_text, response=step.response_text) for step in shown.steps if step.train]
    judged = [(step.prompt_text, *step.judged) for step in shown.steps if step.judged]
    return acted + [Example(prompt=question(prompt, action, chat=chat, stops=stops),
                            response=shown_answer(verdict_of(good), chat=chat, stops=stops))
                    for prompt, action, good in judged]
