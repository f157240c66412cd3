"""The records that processes exchange. Light: imports numpy and msgspec only.

Legend: P prompt tokens of one step, R response tokens of one step (the end token included).
Every record is frozen and keyword-only; proto/ holds their JSON Schemas, frozen by a test.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import msgspec
import numpy as np

from services.rewards import within_reward_limit

TicketKind = Literal["train", "eval"]
EpisodeEnd = Literal["won", "lost", "turns", "context"]
CUT: tuple[EpisodeEnd, ...] = ("turns", "context")  # ends that a budget caused, not the game
Verdict = Literal["accepted", "refused"]
_ARRAY_EXT = 1


class Version(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A policy version. The incarnation grows by one at each learner start, so two learners never share a version."""

    incarnation: int
    step: int
    """Learner steps taken by these weights."""
    digest: str = ""
    """Digest of names, shapes, types and contents of all tensors (services/weights/pack.py or checksum.py)."""

    @property
    def short(self) -> str:
        """`3.128`: incarnation 3, step 128."""
        return f"{self.incarnation}.{self.step}"

    @property
    def name(self) -> str:
        """`3.128.<digest>`."""
        return f"{self.short}.{self.digest}"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """An order to play one episode: member k of one group."""

    group: str
    """Group id, `train/00000012` or `eval/<label>/<temperature>/<index>`; training groups sort in order of issue."""
    k: int
    size: int
    """Members of the group: K for training, the samples per task for evaluation."""
    task: str
    seed: int
    """The same on every attempt. Training: of the run's seed, group and k. Evaluation: of task, temperature and k, so
    that all versions play the same games."""
    kind: TicketKind
    min_step: int = 0
    """Training: the worker must hold a version of at least this step before it starts."""
    exact_version: Version | None = None
    """Evaluation: the one version that may play this ticket."""
    temperature: float
    max_steps: int
    task_type: str = ""
    """The environment's name of the task type, for readers of the archive. Empty if it was not known at issue."""
    correction: str = ""
    """Training: instructions of the policy to itself, which all prompts of the group carry (rollout/judge.py)."""

    @property
    def id(self) -> str:
        """Unique in a run."""
        return self.id_of(self.group, self.k)

    @staticmethod
    def id_of(group: str, k: int) -> str:
        """Returns the id of member k of a group: `<group>#<k>`."""
        return f"{group}#{k}"


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens [start, end) were sampled by `version`."""

    version: Version
    start: int
    end: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: the state that the policy saw, the tokens it sampled, and the answer of the environment."""

    observation: str
    """Raw feedback text s_t, before the action: the anchor of the state key."""
    prompt_ids: np.ndarray
    """int32 [P]."""
    response_ids: np.ndarray
    """int32 [R], exactly as sampled."""
    logprobs: np.ndarray
    """float32 [R], of the distribution sampled from (temperature applied)."""
    spans: list[VersionSpan]
    """Spans that cover [0, R) in order."""
    action: str
    """The action that the environment received."""
    valid: bool
    """Whether the output was well-formed (method section 2). Invalid turns are penalised."""
    admissible: bool
    """Whether the action was in the list of admissible actions, or there was no list."""
    reward: float
    """Environment reward times env.reward_scale."""
    choices: str = ""
    """Digest of the admissible actions before the action (choices_digest). Empty if there was no list."""
    state: str = ""
    """The environment's own id of s_t. Empty if it gave none."""
    unchanged: bool = False
    """Whether the environment said that the action changed nothing."""
    tag: str = ""
    """The kind of reasoning that the answer named, if the prompt asks for one."""
    follows: int | None = None
    """Index of the episode's earlier step whose prompt and response this prompt begins with. None: there is none."""
    broke: bool = False
    """Whether the prompt holds earlier answers as other tokens than were sampled, since the history was changed."""
    cut: bool = False
    """Whether the answer was ended by its limit of tokens, and not by the policy."""

    def is_continued_by(self, prompt_ids: np.ndarray) -> bool:
        """Returns whether a prompt [P] begins with all tokens of this step, prompt and response."""
        start, end = len(self.prompt_ids), len(self.prompt_ids) + len(self.response_ids)
        return (len(prompt_ids) >= end and np.array_equal(prompt_ids[start:end], self.response_ids)
                and np.array_equal(prompt_ids[:start], self.prompt_ids))


class PlayedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A finished turn of an unfinished episode: all that another worker needs to take the turn without a sampler."""

    ids: np.ndarray
    """int32 [R] response tokens."""
    logprobs: np.ndarray
    """float32 [R]."""
    spans: list[VersionSpan]
    """Cover [0, R) in order."""
    action: str
    """Action that the environment received."""
    digest: str
    """Digest of the game after the action."""


def verdict_of(good: bool) -> str:
    """Returns the word for a label of the judge task, which a right answer says."""
    return "good" if good else "bad"


class JudgedAction(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the policy about one of its own actions, with its answers (GCD, rollout/judge.py)."""

    turn: int
    """Index of the step whose action is judged."""
    good: bool
    """The label by rule: whether the action was good."""
    answers: list[Step]
    """Each a turn of its own with the same prompt: `action` is `good`, `bad` or "", `valid` whether it is one of the
    two, and `reward` 1 if it is the label, else 0."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A finished episode: won, lost, or cut off by a budget. An attempt that ended in a fault never becomes one."""

    ticket: Ticket
    steps: list[Step]
    won: bool
    end: EpisodeEnd
    worker: str
    attempt: int
    seconds: float
    engine: str
    """Environment engine and version, from /v1/info."""
    replays: int = 0
    """Number of times its session was rebuilt, on another server or after a restart."""
    task_score: float | None = None
    """The environment's own score at the end, in its own units (`task_score` of its last info). None: no score."""
    rule_scores: dict[str, float] = {}
    """The score by each of several rules, if the environment has more than one (`score/RULE` of its last info)."""
    final_observation: str = ""
    """Raw feedback after the last action: the state in which an episode was cut off. Empty in older records."""
    final_choices: str = ""
    """Digest of the admissible actions after the last action (choices_digest)."""
    final_state: str = ""
    """The environment's own id of the state after the last action."""
    judged: list[JudgedAction] = []
    """The judge task after the episode. Its answers are no steps: credit and returns do not see them."""

    @property
    def oldest_step(self) -> int:
        """Returns the lowest policy step that sampled any of its tokens. The episode's age is measured from it."""
        answers = (answer for question in self.judged for answer in question.answers)
        return min((span.version.step for step in (*self.steps, *answers) for span in step.spans), default=0)

    @property
    def total_reward(self) -> float:
        """Returns the undiscounted sum of rewards."""
        return float(sum(step.reward for step in self.steps))

    @property
    def extreme_number(self) -> str:
        """Describes the first reward or score that is not within LARGEST_REWARD; "" if there is none."""
        for turn, step in enumerate(self.steps):
            if not within_reward_limit(step.reward):
                return f"the reward {step.reward:g} at turn {turn}"
        score = self.task_score
        return "" if score is None or within_reward_limit(score) else f"the task score {score:g}"

    @property
    def tokens_sampled(self) -> int:
        """Returns the number of response tokens, those of its judgements included."""
        answers = (answer for question in self.judged for answer in question.answers)
        return sum(len(step.response_ids) for step in (*self.steps, *answers))


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over finished episodes, without those with an extreme_number: their sums need not be numbers in JSON."""

    episodes: int = 0
    steps: int = 0
    """Environment steps."""
    wins: int = 0
    reward: float = 0.0
    """Undiscounted returns."""
    score: float = 0.0
    """The environment's own scores, of the `scored` episodes that have one."""
    scored: int = 0
    tokens: int = 0
    """Tokens sampled, those of judgements included."""

    @classmethod
    def of(cls, episodes: Sequence[Episode], **named: str) -> Self:
        """Returns the sums over these episodes. `named`: the other fields."""
        episodes = [episode for episode in episodes if not episode.extreme_number]
        scores = [episode.task_score for episode in episodes if episode.task_score is not None]
        return cls(
            **named, episodes=len(episodes), steps=sum(len(episode.steps) for episode in episodes),
            wins=sum(episode.won for episode in episodes),
            reward=math.fsum(episode.total_reward for episode in episodes), score=math.fsum(scores),
            scored=len(scores), tokens=sum(episode.tokens_sampled for episode in episodes))


class Drop(Tally, frozen=True, kw_only=True):
    """A group that will never be trained on, and why. The sums are over its finished episodes: whether a group is
    dropped may depend on its lengths and rewards, so statistics over the other groups alone would be biased."""

    group: str
    task: str
    reason: str
    task_type: str = ""
    """Task type of its finished episodes. Empty without one, and in older records."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that learner step `step` trains on. It is the commit record, written before the optimizer step."""

    step: int
    incarnation: int
    groups: list[str]
    """Ids in training order."""
    drops: list[Drop]
    """All drops since the previous manifest."""


def choices_digest(actions: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits of a list of admissible actions, in any order. An empty list gives ""."""
    return hashlib.blake2b(msgspec.json.encode(sorted(actions)), digest_size=8).hexdigest() if actions else ""


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        head = f"{value.dtype.str}:{','.join(map(str, value.shape))}:".encode()
        return msgspec.msgpack.Ext(_ARRAY_EXT, head + np.ascontiguousarray(value).tobytes())
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def _decode_array(code: int, data: memoryview) -> Any:
    if code != _ARRAY_EXT:
        raise ValueError(f"unknown msgpack extension {code}")
    dtype, shape, body = bytes(data).split(b":", 2)
    sizes = [int(n) for n in shape.split(b",") if n]
    return np.frombuffer(body, dtype=np.dtype(dtype.decode())).reshape(sizes)


def _check_array(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_episodes = msgspec.msgpack.Decoder(Episode, ext_hook=_decode_array, dec_hook=_check_array)
_turns = msgspec.msgpack.Decoder(PlayedTurn, ext_hook=_decode_array, dec_hook=_check_array)


def encode_episode(episode: Episode) -> bytes:
    """Returns the episode as zstd-compressed msgpack."""
    import zstandard

    return zstandard.ZstdCompressor(level=1).compress(_encoder.encode(episode))


def decode_episode(blob: bytes) -> Episode:
    """Returns the episode of a blob of encode_episode. Raises ValueError, TypeError or ZstdError for a damaged one."""
    import zstandard

    return _episodes.decode(zstandard.ZstdDecompressor().decompress(blob))


def encode_turn(turn: PlayedTurn) -> bytes:
    """Returns the turn as msgpack. It is not compressed: it is written once and read only if its worker dies."""
    return _encoder.encode(turn)


def decode_turn(body: bytes) -> PlayedTurn:
    """Returns the turn of a body of encode_turn. Raises ValueError or TypeError for a damaged one."""
    return _turns.decode(body)
