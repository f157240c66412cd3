"""Blobs of episodes outlive the version of gagpo that wrote them."""

import msgspec
import numpy as np
import zstandard

from services.records import Episode, Step, Ticket, Version, VersionSpan, decode_episode, encode_episode

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
