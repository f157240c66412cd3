"""The wire form of the environment API. proto/environment.openapi.json is generated from these and frozen by a test.

Requests are bounded in every direction, so that one client cannot fill a server's memory.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from envservice.wire.problems import ProblemType

MAX_ACTIONS = 199
"""Actions before this one: an episode has at most MAX_ACTIONS + 1 steps. Solutions of ScienceWorld take up to 192."""
MAX_BATCH = 256
"""Elements of one request."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one request's body."""
TRACES_HEADER = "gagpo-traceparents"
"""The span that each element belongs to, in W3C's form and in the order of the elements, "" for none; sent where the
client traces. Not `traceparent`, which is one for a whole request, and elements of many episodes share one."""
REPLAYS_HEADER = "gagpo-replays"
"""Positions of the elements whose session had to be rebuilt; a header, so that results stay the same to the letter."""
MAX_ACTION = 8192
"""Characters of one action: a policy may ramble up to its response limit."""

EpisodeId = Annotated[str, Field(min_length=1, max_length=200)]
TaskId = Annotated[str, Field(min_length=1, max_length=400)]
Action = Annotated[str, Field(max_length=MAX_ACTION)]


class WireModel(BaseModel):
    """Unknown fields are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ResetRequest(WireModel):
    """Starts an episode, or starts it again."""

    episode_id: EpisodeId
    """Made by the client, unique to one attempt at one episode."""
    task: TaskId


class StepResult(WireModel):
    """What reset and step give back."""

    observation: str
    admissible_actions: list[str]
    reward: float
    done: bool
    won: bool
    info: dict[str, str | int | float | bool]
    digest: str


class StepRequest(WireModel):
    """One action, with all that a server needs to rebuild the session that it belongs to."""

    episode_id: EpisodeId
    task: TaskId
    actions: Annotated[list[Action], Field(max_length=MAX_ACTIONS)]
    """All actions so far, so the index of this step is their number."""
    action: Action
    digest: Annotated[str, Field(min_length=1, max_length=200)]
    """As the last reply gave it."""
    transcript: Annotated[list[StepResult], Field(max_length=MAX_ACTIONS)] | None = None
    """The results of `actions`, one each, as they were given. Needed only where a server answered `transcript_missing`:
    it has lost the session, and those of its environment cannot be rebuilt by taking their actions again."""


class CloseRequest(WireModel):
    """Ends an episode early or late; unknown ids are closed already."""

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
    """One split of the task panel."""

    tasks: int
    digest: str


class Info(WireModel):
    """What this server plays."""

    name: str
    """`alfworld-gen` where the games are generated."""
    engine: str
    version: str
    replay: str
    splits: dict[str, SplitInfo]


class TaskList(WireModel):
    """The tasks of one split, sorted."""

    split: str
    digest: str
    tasks: list[str]
