"""The records that cross process borders. Light: numpy and msgspec only.

Legend: P prompt tokens of one step, R response tokens of one step (the end token included).
Every record is frozen and keyword-only; proto/ holds their JSON Schemas, frozen by a test.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import zstandard

TicketKind = Literal["train", "eval"]
EpisodeEnd = Literal["won", "lost", "turns", "context"]
Verdict = Literal["accepted", "refused"]

_ARRAY_EXT = 1


class Version(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A policy version. The incarnation grows by one at each learner start, so two learners never share a version."""

    incarnation: int
    step: int
    """Learner steps taken by these weights."""
    digest: str = ""
    """blake2b over names, shapes, types and bytes of all tensors."""

    @property
    def short(self) -> str:
        """`3.128`: incarnation 3, step 128."""
        return f"{self.incarnation}.{self.step}"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The order for one episode: member k of one group."""

    group: str
    """Group id, `train/00000012` or `eval/<label>/<temperature>/<index>`; training groups sort in order of issue."""
    k: int
    size: int
    """Members of the group: K for training, the samples per task for evaluation."""
    task: str
    seed: int
    """seed_for(run seed, group, k): the same on every attempt."""
    kind: TicketKind
    min_step: int = 0
    """Training: the worker must hold a version of at least this step before it starts."""
    exact_version: Version | None = None
    """Evaluation: the one version that may play this ticket."""
    temperature: float
    max_steps: int
    task_type: str = ""
    """As the environment names it, for who reads the archive; empty where whoever made the ticket knew none."""

    @property
    def id(self) -> str:
        """Unique in a run."""
        return self.id_of(self.group, self.k)

    @staticmethod
    def id_of(group: str, k: int) -> str:
        """Of a group's member k: `<group>#<k>`."""
        return f"{group}#{k}"


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens [start, end) were sampled by `version`."""

    version: Version
    start: int
    end: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: the state seen, the tokens sampled there, what the environment made of them."""

    observation: str
    """Raw feedback text s_t, before the action: the anchor of the state key."""
    prompt_ids: np.ndarray
    """int32 [P]."""
    response_ids: np.ndarray
    """int32 [R], exactly as sampled."""
    logprobs: np.ndarray
    """float32 [R], of the distribution sampled from (temperature applied)."""
    spans: list[VersionSpan]
    """Cover [0, R) in order."""
    action: str
    """What the environment received."""
    valid: bool
    """Well-formed output (method section 2); invalid steps are penalised."""
    admissible: bool
    """The action was in the admissible list, or there was none."""
    reward: float
    """Environment reward times env.reward_scale."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A finished episode. Time-outs and lost games are episodes too; faults never are."""

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
    """Sessions that had to be rebuilt on another or a restarted server."""
    task_score: float | None = None
    """The environment's own score at the end, in its own units (`task_score` of its last info); None: it has none."""
    final_observation: str = ""
    """Raw feedback after the last action: the state that an episode was cut off in. Empty in older records."""

    @property
    def oldest_step(self) -> int:
        """The lowest policy step that sampled any token: the episode's age is judged by it."""
        return min((span.version.step for step in self.steps for span in step.spans), default=0)

    @property
    def total_reward(self) -> float:
        """Undiscounted."""
        return float(sum(step.reward for step in self.steps))


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A group that will never be trained on, and why."""

    group: str
    task: str
    reason: str
    steps: int = 0
    """Environment steps that its finished episodes held: dropping long ones biases the gradient."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the optimizer step: the commit record of what step `step` trains on."""

    step: int
    incarnation: int
    groups: list[str]
    """Ids in training order."""
    drops: list[Drop]
    """All drops since the previous manifest."""


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


def encode_episode(episode: Episode) -> bytes:
    """Episode to a zstd-compressed msgpack blob."""
    return zstandard.ZstdCompressor(level=1).compress(_encoder.encode(episode))


def decode_episode(blob: bytes) -> Episode:
    """The inverse of encode_episode. Raises msgspec.ValidationError or zstandard.ZstdError on a damaged blob."""
    return _episodes.decode(zstandard.ZstdDecompressor().decompress(blob))
