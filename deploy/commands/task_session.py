"""The session of one task, for commands that play it. Whatever fails in the environment becomes one UserError."""

from __future__ import annotations

from dataclasses import dataclass

from envservice.base import Environment, Outcome, Session, outcome_of
from envservice.registry import env_of, find_spec, open_holding
from services.config.env import EnvSection
from services.errors import UserError
from services.process.own_code import as_user_error


@dataclass(frozen=True, slots=True)
class TaskSession:
    """A session that raises UserError if the environment raises, calls `sys.exit`, or returns no outcome."""

    task: str
    session: Session

    def reset(self) -> Outcome:
        """Starts the game."""
        with as_user_error(*_failed(self.task)):
            return outcome_of(self.session.reset(), "reset")

    def step(self, action: str) -> Outcome:
        """Takes one action."""
        with as_user_error(*_failed(self.task)):
            return outcome_of(self.session.step(action), "step")


def _failed(task: str) -> tuple[str, str]:
    """Returns what is wrong with a game that raises, and how to fix it."""
    return f"the game {task} failed", "fix the environment, or what it needs"


def open_session(env: EnvSection, task: str) -> TaskSession:
    """Opens a task of the environment that its id belongs to. Raises UserError for an unknown task, missing data, an
    outside service that does not answer, and a game that fails."""
    unknown = UserError(f"there is no task {task!r}", "see `gagpo play --tasks SPLIT`")
    try:
        environment = open_holding(env, task)
    except KeyError:
        raise unknown from None
    env = env_of(env, task)
    find_spec(env.name).reachable(env)
    with as_user_error(*_failed(task)):
        try:
            return TaskSession(task, environment.open(task))
        except KeyError:
            if _lists(environment, task):  # then the game itself looked something up
                raise
            raise unknown from None


def _lists(environment: Environment, task: str) -> bool:
    try:
        return task in environment.tasks(task.split("/")[1])
    except (KeyError, IndexError):
        return False
