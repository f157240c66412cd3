"""Step-level credit inside other trainers: ids that know their step, and the function that registries take.

It gets the arguments of verl 0.9.1 and SkyRL 0.3.0. Their installed packages are asked by verl_cases.py and
skyrl_cases.py.
"""

import math
import pickle
import random
import re
from itertools import permutations

import numpy as np
import pytest
import torch

import gagpo
from gagpo.integrations.steps import STEP_LEVEL, StepUid, TokenStep, advantage_function, step_advantages, step_uids
from learner.logged_groups.form import credit_options
from services.errors import UserError

OPTIONS = {"gamma": 0.9, "penalty": 0.5}
GROUP = {"episodes": [
    {"steps": [{"state": "S", "reward": 0.0}, {"state": "X", "reward": 10.0}]},
    {"steps": [{"state": "S", "reward": 0.0, "invalid": True}, {"state": "X", "reward": 0.0},
               {"state": "Z", "reward": 0.0}]}]}
OTHER = {"episodes": [{"steps": [{"state": "S", "reward": 1.0}]}, {"steps": [{"state": "S", "reward": 0.0}]}]}


def rows():
    """Each step of both groups: id, reward, advantage."""
    found = []
    for name, group in (("a", GROUP), ("b", OTHER)):
        credit = gagpo.credit(group, **OPTIONS)
        for k, (episode, advantages) in enumerate(zip(group["episodes"], credit.advantages, strict=True)):
            for t, (step, advantage) in enumerate(zip(episode["steps"], advantages, strict=True)):
                uid = StepUid(name, f"episode {k}", t, step["state"], invalid=step.get("invalid", False), action="go")
                found.append((uid, step["reward"], advantage))
    return found


def batch(*, shuffled=True):
    """Arguments of a function of a registry, and the advantages. Rows are shuffled, and the first one comes twice."""
    steps = rows()
    steps = [*steps, steps[0]]
    if shuffled:
        random.Random(0).shuffle(steps)
    mask = torch.tensor([[1.0, 1.0, 0.0]] * len(steps))
    rewards = torch.zeros_like(mask)
    rewards[:, 1] = torch.tensor([reward for _, reward, _ in steps])
    index = np.array([uid for uid, _, _ in steps], dtype=object)
    expected = torch.tensor([advantage for _, _, advantage in steps])[:, None] * mask
    return {"token_level_rewards": rewards, "response_mask": mask, "index": index}, expected


def test_an_id_is_the_id_of_its_group_and_survives_the_way_to_another_process():
    uid = StepUid("g", "e", 3, "hall", invalid=True, action="go north")
    again = pickle.loads(pickle.dumps(uid))
    assert uid == again == "g"
    assert {uid: 1}["g"] == 1
    assert (again.episode, again.turn, again.observation, again.invalid) == ("e", 3, "hall", True)
    assert again.action == "go north"


@pytest.mark.parametrize("others", [
    {"config": None, "reward_baselines": None},
    {"values": None, "grpo_norm_by_std": True, "gamma": 1.0, "lambd": 1.0, "config": None}], ids=["verl", "SkyRL"])
def test_rows_in_any_order_get_the_credit_of_their_groups(others):
    arguments, expected = batch()
    advantages, returns = advantage_function("gagpo", OPTIONS)(**arguments, **others)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected)


def test_clusters_of_similar_texts_do_not_depend_on_the_order_of_rows():
    """abcx resembles both others, which do not resemble each other: abcd, of the first episode by id, founds a cluster.

    abcd and abcx earn 8 and 4, so ±2 beside the episode's term, 8, 4 and 2 less their mean 14/3; abxx is alone.
    """
    steps = [(StepUid("g", episode, 0, text), reward) for episode, text, reward in (
        ("a", "abcd", 8.0), ("b", "abcx", 4.0), ("c", "abxx", 2.0))]
    options = credit_options({"estimator": "gigpo", "mode": "mean_norm", "state_key": "similarity", "similarity": 0.75})
    for order in permutations(steps):
        uids, rewards = zip(*order, strict=True)
        found = {uid.episode: a for uid, a in zip(uids, step_advantages(uids, rewards, options), strict=True)}
        assert found == pytest.approx({"a": 16 / 3, "b": -8 / 3, "c": -8 / 3})


def test_every_step_level_estimator_is_offered():
    assert {"gagpo", "gagpo_loo", "gigpo", "hgpo"} <= set(STEP_LEVEL)
    assert not {"grpo", "rloo", "ppo"} & set(STEP_LEVEL)
    arguments, _ = batch()
    for name in STEP_LEVEL:
        assert advantage_function(name, {})(**arguments)[0].isfinite().all()


def test_rows_that_fill_the_batch_get_nothing_and_belong_to_no_group():
    """verl 0.9.1 appends rows with an id of their own and no response token, before it asks for advantages."""
    arguments, expected = batch()
    filled = {"token_level_rewards": torch.cat([arguments["token_level_rewards"], torch.zeros(2, 3)]),
              "response_mask": torch.cat([arguments["response_mask"], torch.zeros(2, 3)]),
              "index": np.array([*arguments["index"], "pad0", "pad0"], dtype=object)}
    advantages, _ = advantage_function("gagpo", OPTIONS)(**filled)
    torch.testing.assert_close(advantages, torch.cat([expected, torch.zeros(2, 3)]))


def test_a_step_whose_answer_is_empty_is_still_a_turn_of_its_episode():
    """Returns 10 and 0 from S: mean 5, so ±5 without a spread. The won step has no token to show it at."""
    index = [StepUid("g", "won", 0, "S"), StepUid("g", "lost", 0, "S")]
    mask, rewards = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0], [0.0]])
    advantages, _ = advantage_function("gagpo", {"normalize": "none"})(rewards, mask, index)
    torch.testing.assert_close(advantages, torch.tensor([[0.0], [-5.0]]))


def test_adastep_compares_the_actions_of_the_ids():
    """The example of docs/algorithms.md: x earns 8 and 4, y twice 2, so A = (1 + 2/3) (Q - 4)."""
    steps = [("x", 8.0), ("x", 4.0), ("y", 2.0), ("y", 2.0)]
    uids = [StepUid("g", str(k), 0, "S", action=action) for k, (action, _) in enumerate(steps)]
    options = credit_options({"estimator": "adastep", "mode": "mean_norm"})
    found = step_advantages(uids, [reward for _, reward in steps], options)
    assert found == pytest.approx([20 / 3, 0, -10 / 3, -10 / 3])
    with pytest.raises(UserError, match="turn 0 of the episode e has no action, and the estimator adastep compares"):
        step_advantages([StepUid("g", "e", 0, "S")], [0.0], options)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200])
def test_a_reward_that_no_credit_can_be_made_of_is_told_with_its_place(reward):
    """The square of 1e200 is infinite: divided by such a spread, all advantages would be 0."""
    uids = [StepUid("g", "won", 0, "S"), StepUid("g", "won", 1, "X"), StepUid("g", "lost", 0, "S")]
    with pytest.raises(UserError, match=re.escape(f"turn 1 of the episode won has the reward {reward:g}; correct the")):
        step_advantages(uids, [0.0, reward, -reward], credit_options({"estimator": "grpo"}))


def test_ids_and_turns_may_be_numbers_of_other_libraries_and_texts_must_be_texts():
    uids = [StepUid("g", 0, 0.0, "S"), StepUid("g", "one", np.int64(0), "S"), StepUid("g", 0, torch.tensor(1), "X")]
    assert len(step_advantages(uids, [0.0, 0.0, 1.0], credit_options({}))) == 3
    for observation in ([{"role": "user", "content": "S"}], None):
        with pytest.raises(UserError, match=r"^the observation of turn 3 is .*, which is no text; give"):
            StepUid("g", "e", 3, observation)
    for turn in (0.5, math.nan, math.inf, "first", None):
        with pytest.raises(UserError, match=rf"^a turn of the episode e is {turn!r}; count"):
            StepUid("g", "e", turn, "S")


def test_a_copy_of_a_step_may_differ_by_rounding():
    uids = [StepUid("g", "won", 0, "S"), StepUid("g", "lost", 0, "S"), StepUid("g", "won", 0, "S")]
    assert step_advantages(uids, [8.0, 0.0, 8.001], credit_options({"normalize": "none"})) == [4.0, -4.0, 4.0]


@pytest.mark.parametrize("other", [(StepUid("g", "e", 0, "S"), 1.0), (StepUid("g", "e", 0, "X"), 0.0)])
def test_episodes_of_a_group_that_share_an_id_are_refused(other):
    """Each turn of the first one stood for all: won and lost episodes got one advantage."""
    with pytest.raises(UserError, match="turn 0 of the episode e is there twice, and differs; give each episode"):
        step_advantages([StepUid("g", "e", 0, "S"), other[0]], [0.0, other[1]], credit_options({}))


def test_rows_have_no_tags_for_an_estimator_that_rewards_them():
    with pytest.raises(UserError, match="no step has a tag, and the estimator rlvmr rewards kinds of reasoning"):
        step_advantages([StepUid("g", "e", 0, "S")], [0.0], credit_options({"estimator": "rlvmr"}))
    with pytest.raises(UserError, match="option estimator rlvmr: rows do not say which kind of reasoning they are"):
        advantage_function("rlvmr", {})


@pytest.mark.parametrize(("option", "said"), [
    ({"stay": True}, "option stay: rows do not say which actions changed nothing"),
    ({"bootstrap": True}, "option bootstrap: rows do not say in which state an episode was cut"),
    ({"state_key": "observation+admissible"}, "rows have no admissible actions")], ids=str)
def test_an_option_that_rows_cannot_serve_is_refused(option, said):
    with pytest.raises(UserError) as refused:
        advantage_function("gagpo", option)
    assert said in str(refused.value)


def test_each_mistake_is_one_line():
    options = credit_options({})
    with pytest.raises(UserError, match="'g' of a row does not say which step"):
        step_advantages(["g"], [0.0], options)
    with pytest.raises(UserError, match="episode e of group g has 1 step and no turn 0"):
        step_advantages([StepUid("g", "e", 1, "hall")], [0.0], options)
    with pytest.raises(UserError, match="unknown option"):
        advantage_function("gagpo", {"gama": 0.9})


def test_an_option_that_does_nothing_is_warned_of_once_the_estimator_is_used():
    arguments, _ = batch()
    used = advantage_function("gagpo", {**OPTIONS, "omega": 5.0})
    with pytest.warns(UserWarning, match="^omega does nothing under the estimator gagpo$"):
        used(**arguments)


class Digits:
    """A tokenizer whose text of a token is its number. Number 0 is special."""

    @staticmethod
    def decode(tokens: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(str(token) for token in tokens if token or not skip_special_tokens)


def step(prompt: list[int], response: list[int], mask: list[int], **fields: object) -> TokenStep:
    return TokenStep(prompt=prompt, response=response, mask=mask, fields=fields)


def test_the_observation_of_a_row_is_what_the_model_reads_since_its_last_answer():
    """Answers are 5 6, 8 and 9. The environment says 7, which is in the first row or not; the last prompt is made anew.
    """
    for first in (step([1, 2], [5, 6, 7], [1, 1, 0]), step([1, 2], [5, 6], [1, 1])):
        uids = step_uids("g", "e", [first, step([1, 2, 5, 6, 7], [8], [1]), step([3], [9, 0], [1, 1])], Digits)
        assert uids == ["g"] * 3
        assert [(uid.episode, uid.turn, uid.observation, uid.action) for uid in uids] == [
            ("e", 0, "1 2", "5 6"), ("e", 1, "7", "8"), ("e", 2, "3", "9")]


def test_texts_of_the_rollout_take_the_place_of_the_rows_text():
    (uid,) = step_uids("g", "e", [
        step([1], [5], [1], observation="hall", action="go", invalid=True, turn_scores=[])], Digits)
    assert (uid.observation, uid.action, uid.invalid) == ("hall", "go", True)


@pytest.mark.parametrize(("mask", "runs"), [([1, 0, 1], "2 runs"), ([0, 0, 0], "0 runs")])
def test_a_row_that_is_no_single_answer_is_refused(mask: list[int], runs: str):
    with pytest.raises(UserError, match=f"^turn 0 of the episode e has {runs} of sampled tokens; give one row"):
        step_uids("g", "e", [step([1], [5, 6, 7], mask)], Digits)
