"""The session of one task for commands that play it: whatever its code does, the command says it in one line."""

from __future__ import annotations

from dataclasses import dataclass

from envservice.base import Environment, Outcome, Session, outcome_of
from envservice.registry import env_of, find_spec, open_holding
from services.config.env import EnvSection
from services.errors import UserError
from services.process.own_code import told


@dataclass(frozen=True, slots=True)
class ToldSession:
    """Raises UserError for anything that a session raises, leaves by, or returns in place of an outcome."""

    task: str
    session: Session

    def reset(self) -> Outcome:
        """Starts the game."""
        with told(*_failed(self.task)):
            return outcome_of(self.session.reset(), "reset")

    def step(self, action: str) -> Outcome:
        """Takes one action."""
        with told(*_failed(self.task)):
            return outcome_of(self.session.step(action), "step")


def _failed(task: str) -> tuple[str, str]:
    """Returns what is wrong with a game that raises, and how to fix it."""
    return f"the game {task} failed", "fix the environment, or what it needs"


def open_session(env: EnvSection, task: str) -> ToldSession:
    """Opens a task of the environment that its id belongs to. Raises UserError for an unknown task, missing data, an
    outside service that does not answer, and a game that fails."""
    unknown = UserError(f"there is no task {task!r}", "see `gagpo tasks SPLIT`")
    try:
        environment = open_holding(env, task)
    except KeyError:
        raise unknown from None
    env = env_of(env, task)
    find_spec(env.name).reachable(env)
    with told(*_failed(task)):
        try:
            return ToldSession(task, environment.open(task))
        except KeyError:
            if _lists(environment, task):  # then the game itself looked something up
                raise
            raise unknown from None


def _lists(environment: Environment, task: str) -> bool:
    try:
        return task in environment.tasks(task.split("/")[1])
    except (KeyError, IndexError):
        return False
