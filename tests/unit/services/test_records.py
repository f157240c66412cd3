"""Blobs of episodes outlive the version of gagpo that wrote them."""

import math

import msgspec
import numpy as np
import pytest
import zstandard

from services.records import (
    Drop,
    Episode,
    Step,
    Tally,
    Ticket,
    Version,
    VersionSpan,
    decode_episode,
    encode_episode,
)

STEP = Step(
    observation="You see a desk.", prompt_ids=np.arange(2, dtype=np.int32), response_ids=np.array([3], np.int32),
    logprobs=np.array([-1.0], np.float32), spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=1)],
    action="look", valid=True, admissible=True, reward=0.0)
EPISODE = Episode(
    ticket=Ticket(group="train/00000000", k=0, size=2, task="t", seed=1, kind="train", temperature=1.0, max_steps=5),
    steps=[STEP], won=False, end="turns", worker="w", attempt=1, seconds=0.5, engine="own 1",
    final_observation="Nothing happens.")


def test_an_encoded_episode_is_decoded_unchanged():
    found = decode_episode(encode_episode(EPISODE))
    assert found.steps[0].prompt_ids.tolist() == [0, 1]
    assert (found.final_observation, found.ticket, found.end) == ("Nothing happens.", EPISODE.ticket, "turns")


def test_an_older_blob_without_the_final_observation_is_read():
    """It has none: a cut episode then ends in no state that is known."""
    plain = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(encode_episode(EPISODE)))
    del plain["final_observation"]
    older = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(plain))
    assert decode_episode(older).final_observation == ""


@pytest.mark.parametrize(("reward", "score", "described"), [
    (math.inf, None, "the reward inf at turn 1"), (math.nan, None, "the reward nan at turn 1"),
    (-1e155, 1.0, "the reward -1e+155 at turn 1"), (1e6, math.nan, "the task score nan"), (-1e6, 1e6, "")])
def test_an_episode_names_its_first_number_beyond_the_limit_and_is_then_in_no_sum(reward, score, described):
    """JSON has no such numbers: a sum of them was written as null, and the learner could not read the drop."""
    steps = [msgspec.structs.replace(STEP, reward=2.0), msgspec.structs.replace(STEP, reward=reward)]
    extreme = msgspec.structs.replace(EPISODE, steps=steps, task_score=score)
    assert extreme.extreme_number == described
    drop = Drop.of([EPISODE, extreme], group="train/00000000", task="t", reason="over-age")
    assert b"null" not in msgspec.json.encode(drop)
    assert msgspec.json.decode(msgspec.json.encode(drop), type=Drop) == drop
    if described:
        assert Tally.of([EPISODE, extreme]) == Tally.of([EPISODE])
    else:
        assert (drop.episodes, drop.reward, drop.score, drop.scored) == (2, 2 - 1e6, 1e6, 1)


