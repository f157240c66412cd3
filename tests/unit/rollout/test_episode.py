"""The episode loop with a scripted sampler and a scripted game: what is sent, what is kept, how it ends."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from envservice.base import Outcome, ParsedAction
from envservice.client.client import Result
from learner.credit.state_keys import keys_of_group
from rollout.engine.engine import Sample
from rollout.episode import EpisodeRunner, Limits
from services.config.sections import CreditSection
from services.errors import EngineFault, EnvFault, ReplayDiverged
from services.records import PlayedTurn, Ticket, Version, VersionSpan, decode_turn, encode_episode, encode_turn
from services.seeds import seed_for

VERSION = Version(incarnation=1, step=7, digest="d")
TICKET = Ticket(group="train/00000001", k=2, size=4, task="toy/train/01", seed=11, kind="train", temperature=0.9,
                max_steps=4)  # fmt: skip


def result(observation: str, *, reward: float = 0.0, done: bool = False, won: bool = False,
           truncated: bool = False) -> Result:
    return Result(observation=observation, admissible_actions=["go", "help"], reward=reward, done=done, won=won,
                  truncated=truncated, digest=observation)  # fmt: skip


@dataclass
class Game:
    """A game with scripted answers; an exception in the script is raised."""

    answers: list
    actions: list[str] = field(default_factory=list)
    closed: int = 0
    replays: int = 3

    async def reset(self) -> Result:
        return self.answers.pop(0)

    async def step(self, action: str) -> Result:
        self.actions.append(action)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Sampler:
    """Answers each prompt with the next of `texts`, a token per character."""

    texts: list[str]
    calls: list[dict] = field(default_factory=list)

    async def sample(self, prompt_ids, **options) -> Sample:
        self.calls.append({"prompt": "".join(map(chr, prompt_ids)), **options})
        text = self.texts.pop(0)
        if text == "dead":
            raise EngineFault("dead")
        ids = np.array(list(map(ord, text)), dtype=np.int32)
        spans = [VersionSpan(version=VERSION, start=0, end=len(ids))]
        return Sample(ids=ids, logprobs=np.zeros(len(ids), dtype=np.float32), spans=spans, finished="stop")


class Text:
    """A prompt of one character per turn taken, with the observation; `!` in front makes an answer invalid."""

    stop_ids = (1,)
    stop_texts = ()

    def prompt(self, first: Outcome, turns, now: Outcome, correction: str = "") -> list[int]:
        return list(map(ord, f"{first.observation}|{' '.join(t.action for t in turns)}|{now.observation}"))

    def ends(self, ids) -> bool:
        return int(ids[-1]) in self.stop_ids

    def parse(self, ids) -> ParsedAction:
        text = "".join(map(chr, ids))
        return ParsedAction(action=text.lstrip("!"), valid=not text.startswith("!"))


async def play(game: Game, sampler: Sampler, prompt_tokens: int = 100, **taken_over):
    env = SimpleNamespace(episode=lambda episode_id, task: game)
    limits = Limits(prompt_tokens=prompt_tokens, response_tokens=9, reward_scale=10.0)
    player = EpisodeRunner(worker="w", engine=sampler, env=env, env_engine="own 1", text=Text(), limits=limits)
    return await player.play(TICKET, 2, **taken_over)


async def test_a_won_game_is_recorded_step_by_step():
    """Each row holds what was seen, sampled, sent and earned there."""
    game = Game([result("s0"), result("s1", reward=0.5), result("s2", reward=1, done=True, won=True)])
    sampler = Sampler(["go", "!jump"])
    episode = await play(game, sampler)
    assert (episode.won, episode.end, episode.attempt, episode.replays) == (True, "won", 2, 3)
    assert [step.observation for step in episode.steps] == ["s0", "s1"]
    assert episode.final_observation == "s2"
    assert [step.action for step in episode.steps] == game.actions == ["go", "jump"]
    assert [(step.valid, step.admissible) for step in episode.steps] == [(True, True), (False, False)]
    assert [step.reward for step in episode.steps] == [5.0, 10.0]
    assert [step.response_ids.tolist() for step in episode.steps] == [[103, 111], list(map(ord, "!jump"))]
    assert [call["prompt"] for call in sampler.calls] == ["s0||s0", "s0|go|s1"]
    assert episode.oldest_step == 7
    assert game.closed == 1


async def test_an_answer_without_an_end_token_was_cut_whoever_sampled_it():
    """Token 1 ends an answer here. A turn of another worker says no more than its tokens."""
    turn = PlayedTurn(ids=np.array([103], np.int32), logprobs=np.zeros(1, np.float32), spans=[], action="g",
                      digest="s1")
    game = Game([result("s0"), result("s1"), result("s2"), result("s3", done=True)])
    episode = await play(game, Sampler(["go\x01", "go"]), played=[turn])
    assert [step.cut for step in episode.steps] == [True, False, True]


async def test_seeds_follow_the_turn_and_nothing_else():
    """A second attempt draws the same numbers."""
    sampler = Sampler(["go", "go"])
    await play(Game([result("s0"), result("s1"), result("s2", done=True)]), sampler)
    assert [call["seed"] for call in sampler.calls] == [seed_for(11, 0), seed_for(11, 1)]
    assert sampler.calls[0]["temperature"] == 0.9
    assert sampler.calls[0]["max_tokens"] == 9


async def test_turns_used_up_is_a_finished_episode():
    """max_steps samples are drawn, not one more."""
    sampler = Sampler(["go"] * 9)
    episode = await play(Game([result(f"s{i}") for i in range(9)]), sampler)
    assert (episode.end, episode.won, len(episode.steps)) == ("turns", False, 4)
    assert len(sampler.calls) == 4
    assert (episode.steps[-1].observation, episode.final_observation) == ("s3", "s4")


async def test_a_game_that_ends_without_a_win_is_lost():
    """Lost is an end of its own, with whatever reward there was."""
    episode = await play(Game([result("s0"), result("s1", done=True)]), Sampler(["go"]))
    assert (episode.end, episode.won, episode.total_reward) == ("lost", False, 0.0)


async def test_a_game_that_reached_its_own_limit_was_cut_and_may_be_bootstrapped():
    """A limit of the game's own counts as one of ours: credit knows the state in which the episode was cut."""
    for truncated, end, knows_cut in ((True, "turns", True), (False, "lost", False)):
        episode = await play(Game([result("s0"), result("s1", done=True, truncated=truncated)]), Sampler(["go"]))
        assert (episode.end, episode.won) == (end, False)
        cut = keys_of_group([episode], CreditSection()).cut_in
        assert (cut != [None]) == knows_cut


async def test_turns_of_another_worker_are_not_taken_again_in_a_live_game():
    """The same actions may lead elsewhere now, so the episode begins anew and keeps no turns."""
    turn = PlayedTurn(ids=np.array([103], np.int32), logprobs=np.zeros(1, np.float32), spans=[], action="g", digest="d")
    env = SimpleNamespace(episode=lambda episode_id, task: game)
    game, kept = Game([result("s0"), result("s1", done=True)]), []
    player = EpisodeRunner(worker="w", engine=Sampler(["go"]), env=env, env_engine="own 1", text=Text(),
                           limits=Limits(prompt_tokens=100, response_tokens=9, reward_scale=1.0), replayable=False)
    episode = await player.play(TICKET, 2, played=[turn], keep=lambda *turn: kept.append(turn))
    assert [step.action for step in episode.steps] == game.actions == ["go"]
    assert kept == []


async def test_a_full_context_is_a_finished_episode_with_its_true_reward():
    """The policy brought it about: what was earned before stays."""
    game = Game([result("s0"), result("s1" * 20, reward=0.3)])
    episode = await play(game, Sampler(["go"]), prompt_tokens=30)
    assert (episode.end, len(episode.steps), episode.total_reward) == ("context", 1, 3.0)
    assert episode.final_observation == "s1" * 20
    assert game.closed == 1


@pytest.mark.parametrize(("answers", "texts", "fault"), [
    ([result("s0"), EnvFault("broken")], ["go"], EnvFault),
    ([result("s0")], ["dead"], EngineFault),
])  # fmt: skip
async def test_a_fault_is_raised_and_the_session_freed(answers, texts, fault):
    """Never a zero reward, never a session left behind."""
    game = Game(answers)
    with pytest.raises(fault):
        await play(game, Sampler(texts))
    assert game.closed == 1


@pytest.mark.parametrize(("info", "score"), [({}, None), ({"task_score": 0.25}, 0.25), ({"task_score": 0}, 0.0)])
async def test_the_environments_own_score_at_the_end_is_kept(info, score):
    last = Result(observation="over", admissible_actions=[], reward=0.0, done=True, won=False, digest="d", info=info)
    assert (await play(Game([result("s0"), last]), Sampler(["go"]))).task_score == score


async def test_the_score_by_each_rule_at_the_end_is_kept():
    last = Result(observation="over", admissible_actions=[], done=True, digest="d",
                  info={"task_score": 1.0, "score/original": 1.0, "score/strict": 0, "scored": "yes"})
    assert (await play(Game([result("s0"), last]), Sampler(["go"]))).rule_scores == {"original": 1.0, "strict": 0.0}
    last = Result(observation="over", admissible_actions=[], done=True, digest="d", info={"score/strict": "high"})
    with pytest.raises(EnvFault, match=r"info\.score/strict is 'high'"):
        await play(Game([result("s0"), last]), Sampler(["go"]))


@pytest.mark.parametrize("reward", [1e308, -1.1e5])
async def test_a_reward_that_is_too_large_once_scaled_is_a_fault(reward):
    """The scale is 10. A reward of 1e308 was recorded as inf, at which the learner died each time."""
    game = Game([result("s0"), result("s1", reward=reward, done=True)])
    with pytest.raises(EnvFault, match=r"times env.reward_scale, 10, is .*, and at most 1e\+06 in size is taken"):
        await play(game, Sampler(["go"]))
    assert (await play(Game([result("s0"), result("s1", reward=1e5, done=True)]), Sampler(["go"]))).total_reward == 1e6


@pytest.mark.parametrize("score", [1.1e6, "inf", "high", 10**400], ids=["large", "inf", "high", "huge"])
async def test_a_score_that_is_no_number_within_the_limit_is_a_fault(score):
    last = Result(observation="over", admissible_actions=[], done=True, digest="d", info={"task_score": score})
    with pytest.raises(EnvFault, match=r"info.task_score is '?(1100000|inf|high|10000)"):
        await play(Game([result("s0"), last]), Sampler(["go"]))


async def test_turns_of_a_dead_worker_are_taken_again_without_the_sampler():
    """Cut after each of its turns, an episode goes on to the same rows and hands over only what it played itself."""
    def answers():
        return [result("s0"), result("s1", reward=0.5), result("s2"), result("s3", done=True, won=True)]

    kept = {}
    complete = await play(Game(answers()), Sampler(["go", "!jump", "look"]), keep=kept.__setitem__)
    assert [kept[turn].action for turn in range(3)] == ["go", "jump", "look"]
    for cut in range(4):
        sampler, more = Sampler(["go", "!jump", "look"][cut:]), {}
        played = [decode_turn(encode_turn(kept[turn])) for turn in range(cut)]
        episode = await play(Game(answers()), sampler, played=played, keep=more.__setitem__)
        assert [call["seed"] for call in sampler.calls] == [seed_for(11, turn) for turn in range(cut, 3)]
        assert list(more) == list(range(cut, 3))
        timeless = [msgspec.structs.replace(played, seconds=0.0) for played in (episode, complete)]
        assert encode_episode(timeless[0]) == encode_episode(timeless[1])


async def test_a_game_that_goes_another_way_than_for_the_dead_worker_is_a_fault():
    turn = PlayedTurn(ids=np.array([103, 111], dtype=np.int32), logprobs=np.zeros(2, np.float32), spans=[], action="go",
                      digest="s1")
    with pytest.raises(ReplayDiverged, match="turn 0 of another worker leads to another game"):
        await play(Game([result("s0"), result("elsewhere")]), Sampler([]), played=[turn])
