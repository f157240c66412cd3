"""The wire form of the environment API: bodies of requests and results, and typed errors.

proto/environment.openapi.json is generated from the application that uses it, and a test freezes that file. Every part
of a request is bounded, so that one client cannot fill a server's memory. The error of one element, or of an entire
request, is `{type, message, field, status}`:

    unauthorized        401  no token, or the wrong one
    not_found           404  no such route or split
    unknown_task        404  no such task
    method_not_allowed  405  the route exists, but not with this verb
    conflict            409  this step was taken with another action, or the episode is over
    transcript_missing  409  to rebuild the session, this server needs the results of the actions too
    session_lost        409  this server does not hold the session, and a live one cannot be rebuilt
    replay_diverged     409  the rebuilt session is not the recorded one
    engine_mismatch     409  the digest was made by another engine or version
    too_large           413  body, or number of elements
    malformed           422  `field` names the place
    env_fault           500  the engine broke; its session is gone
    unavailable         503  a service behind the environment is unavailable; nothing has happened, so ask again
    full                503  no room for another session; Retry-After says when to ask again
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_ACTIONS = 199
"""The most actions before this one: an episode has at most MAX_ACTIONS + 1 steps. ScienceWorld's solutions take up to
192."""
MAX_BATCH = 256
"""The most elements of one request."""
MAX_BODY = 4 * 1024 * 1024
"""The most bytes of one request's body."""
REPLAYS_HEADER = "gagpo-replays"
"""The header with the positions of the elements whose session was rebuilt. It is not in the body, so that a rebuilt
result is the same bytes."""
MAX_ACTION = 8192
"""The most characters of one action. A policy may write up to its response limit."""
MAX_TASK = 400
"""The most characters of a task's id."""

EpisodeId = Annotated[str, Field(min_length=1, max_length=200)]
TaskId = Annotated[str, Field(min_length=1, max_length=MAX_TASK)]
Action = Annotated[str, Field(max_length=MAX_ACTION)]

ProblemType = Literal[
    "unauthorized", "not_found", "unknown_task", "conflict", "replay_diverged", "engine_mismatch", "transcript_missing",
    "session_lost", "too_large", "malformed", "env_fault", "unavailable", "full", "method_not_allowed",
]

STATUS: dict[ProblemType, int] = {
    "unauthorized": 401, "not_found": 404, "unknown_task": 404, "method_not_allowed": 405, "conflict": 409,
    "replay_diverged": 409, "engine_mismatch": 409, "transcript_missing": 409, "session_lost": 409, "too_large": 413,
    "malformed": 422, "env_fault": 500, "unavailable": 503, "full": 503,
}


class Problem(Exception):
    """A typed error. `retry_after` is in seconds, and set only if asking again may help."""

    def __init__(
        self, kind: ProblemType, message: str, *, field: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind: ProblemType = kind
        self.message = message
        self.field = field
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status of this type."""
        return STATUS[self.kind]

    def body(self) -> dict[str, str | int | None]:
        """Returns the JSON body as it is sent."""
        return {"type": self.kind, "message": self.message, "field": self.field, "status": self.status}


class WireModel(BaseModel):
    """The base of all bodies. Unknown fields are errors, and no value is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ResetRequest(WireModel):
    """Starts an episode, or starts it again."""

    episode_id: EpisodeId
    """Made by the client, unique to one attempt at one episode."""
    task: TaskId


class StepResult(WireModel):
    """The result of a reset or a step."""

    observation: str
    admissible_actions: list[str]
    reward: float
    done: bool
    won: bool
    info: dict[str, str | int | float | bool]
    state: str = ""
    """The environment's own id of the state. Empty if it gives none."""
    unchanged: bool = False
    """Whether the environment says that the action changed nothing."""
    truncated: bool = False
    """Whether `done` is a limit of the environment's own, and not an end of the task."""
    digest: str


class StepRequest(WireModel):
    """One action, with all that a server needs to rebuild the session that it belongs to."""

    episode_id: EpisodeId
    task: TaskId
    actions: Annotated[list[Action], Field(max_length=MAX_ACTIONS)]
    """All actions so far. Their number is the index of this step."""
    action: Action
    digest: Annotated[str, Field(min_length=1, max_length=200)]
    """The digest in the last reply."""
    transcript: Annotated[list[StepResult], Field(max_length=MAX_ACTIONS)] | None = None
    """The results of `actions`, one each, as the server gave them. Needed only if a server answered
    `transcript_missing`: it has lost the session, and cannot rebuild it by taking the actions again."""


class CloseRequest(WireModel):
    """Ends an episode. Unknown ids count as closed."""

    episode_id: EpisodeId


class CloseResult(WireModel):
    """Whether this server held the session."""

    closed: bool


class ProblemBody(WireModel):
    """A typed error: the whole reply, or one element of it."""

    type: ProblemType
    message: str
    field: str | None
    status: int


class SplitInfo(WireModel):
    """The number of tasks of one split, and their digest."""

    tasks: int
    digest: str


class Info(WireModel):
    """The environment that this server plays."""

    name: str
    """The environment's name. `alfworld-gen` if the games are generated."""
    engine: str
    version: str
    replay: str
    splits: dict[str, SplitInfo]


class TaskList(WireModel):
    """The tasks of one split, sorted."""

    split: str
    digest: str
    tasks: list[str]
