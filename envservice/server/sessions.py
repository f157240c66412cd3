"""The store of open sessions. Unless the environment is live, any of them may be dropped at any moment, because it can
be rebuilt from its task and actions.

Only one thread at a time enters the store (batches.py says which), so it needs no locks. Of two concurrent steps of one
episode, the second finds the first one recorded. It gets the same result if it is the same step, else a conflict.

The cases of a step of index i:

    no session             open, replay actions[:i], check the digest, step      (counted as a replay)
    fewer than i actions   replay the missing ones, check the digest, step       (counted as a replay)
    exactly i actions      check the digest, step
    more than i actions    check the digest, give the recorded result if the action is the same
    another history        conflict

If the environment is live, the first two are session_lost: the client's episode ends by a fault. Nothing is opened, as
that would act on the world. If the environment is pure, a replay takes the actions again. For `replay = "transcript"`,
the replay uses the results that the client has kept, and the digest shows that they are those that the server gave.
That finds mistakes, not lies: a client that may step an episode may also invent one.

A repeated reset gets the recorded result too, as long as the session has no actions.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from envservice.base import Environment, ForeseeingSession, Outcome, RecordedSession, Session, outcome_of
from envservice.server.watchdog import Activity
from envservice.wire import Problem, StepRequest, StepResult
from services.errors import Unavailable, utf8
from services.process.signals import signal_of
from services.telemetry.logs import get_logger

OBJECTS = 400
"""Bytes that a step records in addition to its action and its answer's body: objects, digest, places in lists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, encoded once for all its repetitions."""

    body: bytes
    """JSON of wire.StepResult."""
    digest: str
    done: bool
    rebuilt: bool = False
    """Whether the session was rebuilt for this answer."""

    @property
    def size(self) -> int:
        """Bytes that a step with this answer takes, without its action."""
        return sys.getsizeof(self.body) + OBJECTS


def answered(outcome: Outcome, digest: str) -> Answer:
    """Returns the answer with this outcome. `digest` is that of the game so far."""
    optional = {"state": outcome.state, "unchanged": outcome.unchanged, "truncated": outcome.truncated}
    body = msgspec.json.encode({
        "observation": outcome.observation, "admissible_actions": outcome.admissible_actions,
        "reward": float(outcome.reward), "done": outcome.done, "won": outcome.won, "info": outcome.info,
        **{name: value for name, value in optional.items() if value}, "digest": digest,
    })
    return Answer(body, digest, outcome.done)


# The digest chain by which a rebuilt session proves that it is the same game.
#
#     d_0 = H(content, task, reset outcome)           content: the digest of the task's own data
#     d_i = H(d_{i-1}, action_i, outcome_i)
#
# H is blake2b-128 over compact UTF-8 JSON, [link, action, observation, admissible, reward, done, won], so that any
# language can check it. `info`, `state`, `unchanged` and `truncated` are left out: they explain an outcome and may grow
# without changing the game.
# A digest is written `<engine>@<version>:<hex>`. The prefix distinguishes another engine from a diverged game.

def engine_tag(environment: Environment) -> str:
    """Returns `<engine>@<version>`, the prefix of all digests of this environment."""
    return f"{environment.engine}@{environment.version}"


def tag_of(digest: str) -> str:
    """Returns the engine tag of a digest, or "" if it has none."""
    return digest.rpartition(":")[0]


def first_digest(tag: str, content: str, task: str, outcome: Outcome) -> str:
    """Returns d_0, the digest after the reset. `content` is Environment.task_digest."""
    return _link(tag, f"{content}/{task}", "", outcome)


def next_digest(previous: str, action: str, outcome: Outcome) -> str:
    """Returns d_i, made from d_{i-1}, the action and its outcome."""
    tag, _, link = previous.rpartition(":")
    return _link(tag, link, action, outcome)


def _link(tag: str, link: str, action: str, outcome: Outcome) -> str:
    parts = [
        link, action, outcome.observation, outcome.admissible_actions, float(outcome.reward), outcome.done, outcome.won,
    ]
    return f"{tag}:{hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()}"


log = get_logger("sessions")
RETRY_AFTER_S = 5.0
"""Longest wait that a full store asks for, even if no lease ends so soon: most sessions are closed before."""
_INTACT = ("conflict", "transcript_missing", "malformed", "unavailable")  # problems after which the session is kept


@dataclass(slots=True)
class _Live:
    task: str
    session: Session
    answers: list[Answer]
    """One answer per observation: the reset first, then one for each action."""
    actions: list[str] = field(default_factory=list)
    expires: float = 0.0
    recorded: int = 0
    """Bytes of actions and answers."""
    client: str = ""
    """The address of the client that used it last."""


class SessionStore:
    """At most `limit` sessions of one environment. A session that is idle for `lease_s` seconds is dropped.

    A live session, which nobody can rebuild, is dropped after `live_lease_s`, or after `lease_s` if the store is full:
    otherwise the sessions of a client that has died would fill it.

    If all sessions together have recorded more than `record_bytes` (None: no bound), those used least recently are
    dropped too, but never the one in use, nor live ones. If the store is full, the client with the most sessions loses
    one to a client that holds at least two fewer. Methods raise Problem.
    """

    def __init__(
        self, environment: Environment, *, limit: int = 1024, lease_s: float = 300.0, live_lease_s: float = 3600.0,
        record_bytes: int | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self.limit = limit
        self.expired = 0
        """Number of sessions that were dropped: their lease ended, or others needed their place or memory."""
        self.activity = Activity()
        self._record_bytes = record_bytes
        self._held = 0
        self._clock = clock
        self._tag = engine_tag(environment)
        self._is_live = environment.replay == "live"
        self._idle_s, self._lease_s = lease_s, live_lease_s if self._is_live else lease_s
        self._contents: dict[str, str] = {}  # task -> digest of its content
        self._live: dict[str, _Live] = {}  # in order of use, so the first lease ends first

    def __len__(self) -> int:
        return len(self._live)

    def reset(self, episode_id: str, task: str, client: str = "") -> Answer:
        """Restarts the episode. A session of this task without actions is reused. If the task is unknown or broken, the
        old session stays."""
        content = self._content(task)
        live = self._take_new(episode_id, task) or self._open(task, content, client)
        live.client = client
        self._keep(episode_id, live)
        return live.answers[0]

    def step(self, request: StepRequest, client: str = "") -> Answer:
        """Takes one step, and rebuilds the session first if needed. A repeated step returns its recorded answer."""
        asked = tag_of(request.digest)
        if asked not in ("", self._tag):
            raise Problem("engine_mismatch", f"this server plays {self._tag}, not {asked}", field="digest")
        self.expire()
        live = self._take(request.episode_id)
        rebuilt = live is None or len(live.actions) < len(request.actions)
        if rebuilt and self._is_live:
            raise Problem("session_lost", "this server does not hold the session, and a live one cannot be rebuilt; "
                          f"one that nobody uses for {self._lease_s:g} s (agent.seconds) is dropped, and on a full "
                          f"server after {self._idle_s:g} s")
        try:
            live = live or self._open(request.task, self._content(request.task), client)
            live.client = client
            answer = self._advance(live, request)
        except Problem as problem:
            sound = problem.kind in _INTACT or (problem.kind == "replay_diverged" and not rebuilt)
            if live is not None and sound:
                self._keep(request.episode_id, live)
            raise
        if rebuilt:
            answer = Answer(answer.body, answer.digest, answer.done, rebuilt=True)
            live.answers[len(request.actions) + 1] = answer  # a repetition may be answered before this request
        self._keep(request.episode_id, live)
        return answer

    def foresee(self, requests: Sequence[StepRequest]) -> None:
        """Lets the sessions of these steps ask other services now, all at once. The steps themselves follow one by
        one."""
        for request in requests:
            live = self._live.get(request.episode_id)
            if live is None or len(live.actions) != len(request.actions) or live.answers[-1].done:
                continue  # its session will be rebuilt, or its answer is recorded, or it will be refused
            if not isinstance(live.session, ForeseeingSession):
                continue
            try:
                live.session.foresee(request.action)
            except Exception:  # of a user's session; the step itself shows whether it can be taken
                log.exception("the session cannot foresee its step", task=live.task)

    def close(self, episode_id: str) -> bool:
        """Drops the session. Returns False if this store does not hold it."""
        return self._take(episode_id) is not None

    def expire(self) -> None:
        """Drops the sessions whose lease has ended."""
        now = self._clock()
        while self._live:
            oldest = next(iter(self._live))
            if self._live[oldest].expires > now:
                return
            self._drop(oldest)

    def clear(self) -> None:
        """Drops all sessions."""
        self._live.clear()
        self._held = 0

    def _advance(self, live: _Live, request: StepRequest) -> Answer:
        index = len(request.actions)
        common = min(index, len(live.actions))
        if live.task != request.task or live.actions[:common] != request.actions[:common]:
            raise Problem("conflict", "this episode has another history", field="actions")
        if common < index:
            self._replay(live, request.actions[common:], self._recorded(request, common))
        if live.answers[index].digest != request.digest:
            raise Problem("replay_diverged", f"after {index} actions the digest is another", field="digest")
        if index < len(live.actions):
            if live.actions[index] != request.action:
                raise Problem("conflict", f"step {index} was taken with another action", field="action")
            return live.answers[index + 1]
        if live.answers[index].done:
            raise Problem("conflict", "the episode is over", field="action")
        return self._apply(live, request.action)

    def _recorded(self, request: StepRequest, common: int) -> Sequence[StepResult | None]:
        """Returns the results of the actions from `common` on, or None for each if the actions are taken again."""
        if self._environment.replay == "pure":
            return [None] * (len(request.actions) - common)
        if request.transcript is None:
            raise Problem("transcript_missing", f"the results of {len(request.actions)} actions are needed",
                          field="transcript")
        if len(request.transcript) != len(request.actions):
            raise Problem("malformed", f"{len(request.transcript)} results of {len(request.actions)} actions",
                          field="transcript")
        return request.transcript[common:]

    def _replay(self, live: _Live, actions: Sequence[str], results: Sequence[StepResult | None]) -> None:
        for action, past in zip(actions, results, strict=True):
            if live.answers[-1].done:
                raise Problem("replay_diverged", "the rebuilt episode ended before its last action", field="actions")
            self._apply(live, action, None if past is None else Outcome(**past.model_dump(exclude={"digest"})))

    def _content(self, task: str) -> str:
        """Returns the digest of the task's content."""
        try:
            return self._contents.get(task) or self._environment.task_digest(task)
        except KeyError:
            raise Problem("unknown_task", f"no task {task!r} here", field="task") from None
        except (Exception, SystemExit) as error:
            raise _fault(task, error) from error

    def _open(self, task: str, content: str, client: str) -> _Live:
        self.expire()
        if len(self._live) >= self.limit and not self._make_room(client):
            lease_ends = next(iter(self._live.values())).expires - self._clock()
            wait = min(max(lease_ends, 1.0), RETRY_AFTER_S)
            raise Problem("full", f"all {self.limit} sessions are taken", retry_after=wait)
        try:
            session = self._environment.open(task)
            self.activity.moves += 1
            outcome = outcome_of(session.reset(), "reset")
            answer = answered(outcome, first_digest(self._tag, content, task, outcome))
        except (Exception, SystemExit) as error:
            raise _fault(task, error) from error
        self._contents[task] = content
        return _Live(task=task, session=session, answers=[answer], recorded=answer.size, client=client)

    def _make_room(self, client: str) -> bool:
        """Drops the least recently used session of the client with the most. Returns False, and drops none, if `client`
        has as many or one fewer.

        In a live environment it drops the session used least recently, whoever has it, if it was idle for `lease_s`.
        """
        if self._is_live:
            oldest, live = next(iter(self._live.items()))
            if live.expires - self._lease_s + self._idle_s > self._clock():
                return False
            self._drop(oldest)
            return True
        held = Counter(live.client for live in self._live.values())
        greediest, most = held.most_common(1)[0]
        if most < held[client] + 2:
            return False
        self._drop(next(episode_id for episode_id, live in self._live.items() if live.client == greediest))
        return True

    def _apply(self, live: _Live, action: str, past: Outcome | None = None) -> Answer:
        self.activity.moves += 1
        try:
            if past is None:
                outcome = outcome_of(live.session.step(action), "step")
            else:
                outcome = past
                cast("RecordedSession", live.session).recall(action, past)
            answer = answered(outcome, next_digest(live.answers[-1].digest, action, outcome))
        except (Exception, SystemExit) as error:
            raise _fault(live.task, error) from error
        live.actions.append(action)
        live.answers.append(answer)
        live.recorded += sys.getsizeof(action) + answer.size
        return answer

    def _drop(self, episode_id: str) -> None:
        self._take(episode_id)
        self.expired += 1

    def _take(self, episode_id: str) -> _Live | None:
        live = self._live.pop(episode_id, None)
        self._held -= 0 if live is None else live.recorded
        return live

    def _take_new(self, episode_id: str, task: str) -> _Live | None:
        """Removes the session of an episode. Returns it if it is one of `task` without actions. Any other is freed
        here, before a new one opens: it may hold an entire process."""
        live = self._take(episode_id)
        return live if live is not None and live.task == task and not live.actions else None

    def _keep(self, episode_id: str, live: _Live) -> None:
        live.expires = self._clock() + self._lease_s
        self._live[episode_id] = live
        self._held += live.recorded
        bound = None if self._is_live else self._record_bytes
        while bound is not None and self._held > bound and len(self._live) > 1:
            self._drop(next(iter(self._live)))


def _fault(task: str, error: BaseException) -> Problem:
    """Returns the problem of a game that raised `error`, also SystemExit, which would end the server. Raises `error`
    again if it comes from a signal to this process."""
    if signal_of(error) is not None:
        raise error
    if isinstance(error, Unavailable):
        return Problem("unavailable", utf8(str(error)))
    log.exception("the engine failed", task=task)
    return Problem("env_fault", utf8(f"{type(error).__name__}: {error}"))
