"""The errors of one element of a request, or of an entire request: `{type, message, field, status}`.

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

from typing import Literal

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
    """A refusal with its type. `retry_after` is in seconds, and set only if asking again may help."""

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
