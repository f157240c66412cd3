"""The sentences above an episode, from groups worked out by hand: γ = 1, V̄ the mean return of a state's visits."""

from dataclasses import replace

import pytest
from explorer_run import lists, make_run

from deploy.explorer.groups import Group, ShownEpisode, StepView
from deploy.explorer.index import GroupEntry
from deploy.explorer.runs import open_runs
from deploy.explorer.verdict import heading, judge, sentences
from services.records import choices_digest

NOTHING = "No step of this episode lost anything: each was at least as good as its state is on average."
FLAT = "All episodes of this group earned the same, so A = 0 everywhere: they taught nothing."
NO_OTHER = "No other action from that state did better in this group."


def step(t, state, action, *, ret=0.0, value=0.0, delta=0.0, advantage=0.0):
    return StepView(
        t=t, observation=f"You are at {state}.", result=None, action=action, valid=True, admissible=True, reward=0.0,
        version="1.0", num_prompt=1, prompt_ids=None, tokens=[], logprobs=[], learner_logprobs=None, ret=ret,
        value=value, delta=delta, raw=delta, advantage=advantage, state=state)


def episode(k, steps, *, won=False, end="turns"):
    return ShownEpisode(k=k, won=won, end="won" if won else end, worker="w", attempt=1, steps=steps,
                        final_observation=None)


def said(*members):
    """Returns the first member's heading and sentences as text, and the links in them."""
    entry = GroupEntry(
        file="step-00000001", step=1, group="train/1", task="toy/a", kind="a", outcome="trained", reason="",
        temperature=1.0, episodes=len(members), won=0, steps=1, length=1.0, mean_return=0.0, spread=0.0, invalid=0.0,
        singletons=None, row_groups=(0,))
    found = judge(Group(entry=entry, episodes=list(members)), members[0])
    lines = [heading(found, members[0]), *sentences(found, members[0])]
    links = [(part.text, part.k, part.t) for line in lines for part in line if part.t is not None]
    return ["".join(part.text for part in line) for line in lines], links


LOST = episode(0, [step(0, "a", "north", value=4.0, delta=0.5, advantage=0.2),
                   step(1, "b", "drop it", ret=0.0, value=4.5, delta=-3.0, advantage=-1.0),
                   step(2, "c", "wait", value=1.5, delta=0.1, advantage=-2.0)], end="lost")
BETTER = episode(1, [step(0, "b", "keep it", ret=9.0, value=4.5), step(1, "b", "keep it", ret=8.0)], won=True)


def test_the_step_that_lost_the_most_and_what_was_better_there():
    text, links = said(LOST, BETTER)
    assert text == [
        "Where it was lost: step 1, drop it",
        "— its state was worth V̄ = 4.50, the next one 1.50: δ = −3.00, A = −1.00.",
        "From the same state keep it earned 8.50 on average (2 steps, here 0.00): see episode 1, step 0, "
        "episode 1, step 1.",
        "The lowest advantage is that of step 2, A = −2.00: it also answers for what came after it."]
    assert links == [("step 1", None, 1), ("episode 1, step 0", 1, 0), ("episode 1, step 1", 1, 1), ("step 2", None, 2)]


def test_only_an_action_that_was_admissible_there_is_better():
    """Keep it was taken under the same list; drop it earned more under another one, and fly was illegal."""
    worst = replace(step(0, "b", "wander", value=3.0, delta=-3.0, advantage=-1.0), choices="x")
    same = episode(1, [replace(step(0, "b", "keep it", ret=2.0, value=3.0), choices="x")])
    other = episode(2, [replace(step(0, "b", "drop it", ret=9.0, value=3.0), choices="y")], won=True)
    illegal = episode(3, [replace(step(0, "b", "fly", ret=8.0, value=3.0), choices="x", admissible=False)], won=True)
    text, _ = said(episode(0, [worst], end="lost"), same, other, illegal)
    assert text[2].startswith("From the same state keep it earned 2.00 on average")
    text, _ = said(episode(0, [worst], end="lost"), other, illegal)
    assert text[2] == NO_OTHER


def test_a_state_of_steps_with_other_lists_is_said_to_hide_the_truth():
    """Two of the three others had another list; with one of two it is no majority."""
    worst = replace(step(0, "b", "wander", value=3.0, delta=-3.0, advantage=-1.0), choices="x")
    other = [episode(k, [replace(step(0, "b", "drop it", ret=9.0), choices="y")], won=True) for k in (1, 2)]
    same = episode(3, [replace(step(0, "b", "wait"), choices="x")])
    hides = ("Of the 4 steps in that state, 2 had other admissible actions, so V̄ and δ are about unlike situations: "
             "learner.credit.state_key=observation+admissible tells them apart.")
    text, _ = said(episode(0, [worst], end="lost"), *other, same)
    assert text[2:] == ["No other action from that state with the same admissible actions did better in this group.",
                        hides]
    assert hides not in said(episode(0, [worst], end="lost"), other[0], same)[0]


def test_wasted_steps_come_first_if_they_lost_the_episode():
    """Two of five steps: one illegal, one that repeats. Of six they are fewer than 40%."""
    steps = [step(0, "a", "look", value=4.0, delta=-1.0), step(1, "a", "look", value=4.0),
             replace(step(2, "b", "fly"), admissible=False), step(3, "c", "wait"), step(4, "d", "wait")]
    text, links = said(episode(0, steps, end="lost"))
    assert text[:2] == [
        "2 of 5 steps were wasted: 1 not admissible or malformed (step 2, fly), 1 repeated an earlier step "
        "(step 1, look).",
        "Most value was lost at step 0, look — its state was worth V̄ = 4.00, the next one 4.00: δ = −1.00, A = 0.00."]
    assert [t for _, _, t in links] == [2, 1, 0]
    assert said(episode(0, [*steps, step(5, "e", "wait")], end="lost"))[0][0] == "Where it was lost: step 0, look"
    assert said(episode(0, steps, won=True))[0][0] == "Where it lost most: step 0, look"


def test_a_step_whose_action_was_illegal_is_said_to_be():
    worst = replace(step(0, "a", "fly", value=4.0, delta=-1.0), admissible=False)
    rest = [step(t, "b", f"wait {t}") for t in range(1, 4)]
    assert said(episode(0, [worst, *rest], end="lost"))[0][2] == f"Its action was not admissible there. {NO_OTHER}"
    malformed = replace(worst, valid=False)
    assert said(episode(0, [malformed, *rest], end="lost"))[0][2] == f"Its answer was malformed. {NO_OTHER}"


def test_no_box_of_a_run_recommends_what_may_have_been_inadmissible_or_is_silent_about_waste(tmp_path):
    """Every lost episode of ten learner steps, against the lists of admissible actions that its maker gave."""
    run, = open_runs([make_run(tmp_path / "toy", steps=10, groups=3)])
    listed = {choices_digest(actions): actions for actions in lists()}
    better = wasted = pooled = 0
    for entry in (entry for entry in run.groups() if entry.outcome == "trained"):
        group = run.group(entry.file, entry.group)
        for member in (member for member in group.episodes if not member.won):
            found = judge(group, member)
            text = ["".join(part.text for part in line) for line in [heading(found, member), *sentences(found, member)]]
            turns = [(step.observation, step.action) for step in member.steps]
            idle = sum(not (step.valid and step.admissible) or turns[t] in turns[:t]
                       for t, step in enumerate(member.steps))
            assert text[0].startswith(f"{idle} of {len(turns)} steps were wasted") == (idle >= 0.4 * len(turns))
            wasted += idle >= 0.4 * len(turns)
            if found.worst is None:
                continue
            here = [visit.step.choices == found.worst.choices for visit in group.visits[found.worst.state]]
            assert any("unlike situations" in line for line in text) == (2 * here.count(False) > len(here) - 1)
            pooled += 2 * here.count(False) > len(here) - 1
            if found.better is not None:
                assert found.better.action in listed[found.worst.choices]
                better += 1
    assert min(better, wasted, pooled) > 5


def test_an_action_that_earned_no_more_is_not_better():
    worse = episode(1, [step(0, "b", "keep it", ret=0.0, value=4.5)])
    assert said(LOST, worse)[0][2] == NO_OTHER


def test_of_many_that_did_better_three_are_linked():
    many = [episode(k, [step(0, "b", "keep it", ret=9.0)], won=True) for k in range(1, 6)]
    text, links = said(LOST, *many)
    assert "(5 steps, here 0.00)" in text[2]
    assert [k for _, k, _ in links if k is not None] == [1, 2, 3]


def test_a_won_episode_has_a_step_that_lost_most():
    won = episode(0, [step(0, "a", "wander", value=9.0, delta=-1.0, advantage=-1.0), step(1, "b", "win", value=8.0)],
                  won=True)
    assert said(won)[0] == ["Where it lost most: step 0, wander",
                            "— its state was worth V̄ = 9.00, the next one 8.00: δ = −1.00, A = −1.00.", NO_OTHER]


@pytest.mark.parametrize(("end", "how"), [
    ("lost", "and the episode ended there"), ("turns", "and there the episode was cut off, whatever was done")])
def test_the_last_step_has_no_state_after_it(end, how):
    text, _ = said(episode(0, [step(0, "a", "wait", value=2.0, delta=-2.0, advantage=-1.0)], end=end))
    assert text[1] == f"— its state was worth V̄ = 2.00, {how}: δ = −2.00, A = −1.00."


def test_a_cut_that_cost_more_than_any_action_is_named_and_not_again_as_the_lowest():
    cut = episode(0, [step(0, "a", "idle", value=6.0, delta=-1.0, advantage=-0.5),
                      step(1, "b", "wait", value=5.0, delta=-5.0, advantage=-3.0)])
    assert said(cut)[0] == [
        "Where it was lost: step 0, idle", "— its state was worth V̄ = 6.00, the next one 5.00: δ = −1.00, A = −0.50.",
        NO_OTHER, "At step 1 the episode was cut off in a state worth 5.00, whatever was done there: δ = −5.00."]


def test_without_temporal_differences_the_advantage_alone_is_said():
    flat = episode(0, [step(0, "a", "wait", value=None, delta=None, advantage=-0.75)])
    assert said(flat)[0] == ["Where it was lost: step 0, wait", "— advantage A = −0.75.", NO_OTHER]


def test_where_nothing_was_lost_one_sentence_says_so():
    assert said(episode(0, [step(0, "a", "win", delta=1.0, advantage=1.0)], won=True)) == (["", NOTHING], [])


def test_a_group_that_earned_the_same_is_not_said_to_have_played_as_well_as_it_should():
    lost = [episode(k, [step(0, "a", "wait")]) for k in range(2)]
    assert said(*lost)[0] == ["", FLAT]
    level = episode(1, [step(0, "a", "win", delta=1.0, advantage=0.5)], won=True)
    assert said(lost[0], level)[0] == ["", NOTHING]


def test_an_action_of_any_length_leaves_the_sentences_readable():
    """An agent's action is its whole answer, and one that could not be read is an empty text."""
    steps = [step(0, "a", "I think\n" * 500, value=4.0, delta=-3.0, advantage=-1.0)]
    text, _ = said(episode(0, steps, end="lost"), episode(1, [step(0, "a", "", ret=9.0, value=4.0)], won=True))
    assert text[0] == f"Where it was lost: step 0, {'I think ' * 17}I t…"
    assert text[2].startswith("From the same state (empty) earned 9.00")


def test_where_nothing_was_lost_the_step_with_the_lowest_advantage_is_named_with_the_reason():
    """As in a group whose episodes are all lost: δ is 0 everywhere, and malformed answers have a penalty."""
    steps = [step(0, "a", "wait", advantage=0.5), replace(step(1, "a", "", advantage=-1.5), valid=False)]
    assert said(episode(0, [*steps, step(2, "a", "look")])) == (
        ["", NOTHING, "The lowest advantage is that of step 1, A = −1.50: its answer was malformed."],
        [("step 1", None, 1)])
    steps = [step(0, "a", "wait", advantage=-0.5), step(1, "b", "win", delta=1.0, advantage=0.5)]
    assert said(episode(0, steps, won=True))[0][2] == (
        "The lowest advantage is that of step 0, A = −0.50: its Â is below the mean.")
