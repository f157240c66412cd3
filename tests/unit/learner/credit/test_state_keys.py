"""The steps that share a value, for each state key."""

import hashlib
from difflib import SequenceMatcher

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.credit.registry import make_options
from learner.credit.state_keys import (
    KEYS,
    TEXT_KEYS,
    Keys,
    NoOptions,
    embedding,
    exact,
    fold,
    key_function,
    keys_of_group,
    normalized,
    similarity,
)
from learner.rows.batch import credit_steps
from services.errors import UserError
from services.records import Episode, Step, Ticket, Version, VersionSpan, choices_digest

CLOSED = "The drawer 1 is closed."
BANNER = "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 2, and a safe 1."


def episode(*texts, group="train/1", task="t", end="won", final="", prompts=None):
    steps = [Step(observation=text, prompt_ids=np.array(prompt, dtype=np.int32),
                  response_ids=np.arange(2 + t, dtype=np.int32), logprobs=np.zeros(2 + t, np.float32),
                  spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=2 + t)], action="go",
                  valid=True, admissible=True, reward=0.0, choices=choices_digest(f"{text}'s list".split()),
                  state=f"state of {text}")
             for t, (text, prompt) in enumerate(zip(texts, prompts or [[t] for t in range(len(texts))], strict=True))]
    ticket = Ticket(group=group, k=0, size=2, task=task, seed=0, kind="train", temperature=1.0, max_steps=9)
    return Episode(ticket=ticket, steps=steps, won=end == "won", end=end, worker="w", attempt=1, seconds=0.0,
                   engine="e", final_observation=final, final_state=f"state of {final}" if final else "",
                   final_choices=choices_digest(f"{final}'s list".split()) if final else "")


def keys(*group, **options):
    return keys_of_group(group, make_options(**options))


def pattern(rows):
    """Returns keys numbered by first appearance, so that only their equality counts."""
    seen: dict[str, int] = {}
    return [[seen.setdefault(key, len(seen)) for key in row] for row in rows]


def test_the_exact_text_is_the_default():
    assert make_options().state_key == "observation"


def test_an_unknown_key_is_refused_with_those_that_exist():
    with pytest.raises(UserError, match=r"no state key 'obs'; use one of: observation, .*prompt"):
        make_options(state_key="obs")


class OneKeyShort:
    """The state key of a user, with a mistake."""

    Options = NoOptions
    knows_cuts = False

    def keys(self, group, options):
        return Keys(steps=[["S"] * (len(one.steps) - 1) for one in group], cut_in=[None] * len(group))


def test_a_key_of_ones_own_that_misses_a_step_is_told_in_one_line():
    with pytest.raises(UserError, match="OneKeyShort returned another number of keys than there are steps"):
        keys(episode("A", "B"), state_key=f"{__name__}:OneKeyShort")


def test_observation_is_the_hash_of_group_task_and_text():
    """Each part behind its length in eight bytes; runs that were recorded hold these keys."""
    data = b"".join(len(part).to_bytes(8, "big") + part for part in (b"train/1", b"t", "A café".encode()))
    found = keys(episode("A café", "B", "A café"))
    assert found.steps[0][0] == found.steps[0][2] == hashlib.blake2b(data, digest_size=16).hexdigest()
    assert found.steps[0][1] == key_function("train/1", "t")("B")


def test_observation_tells_apart_what_differs_in_one_character():
    assert pattern(keys(episode(CLOSED, CLOSED + " "), episode(CLOSED.lower(), CLOSED)).steps) == [[0, 1], [2, 0]]


@pytest.mark.parametrize("name", sorted(KEYS))
def test_two_groups_or_tasks_never_share_a_key(name):
    """Equal texts and prompts; even in one call, where the similar texts stand for each other."""
    rows = keys(episode("S", CLOSED), episode("S", CLOSED, task="u"), episode("S", CLOSED, group="train/2"),
                state_key=name).steps
    assert len({key for row in rows for key in row}) == 6


def changed(played, **fields):
    """Returns the episode with changed fields of its steps: name -> a value for each step, None to keep it."""
    steps = [msgspec.structs.replace(step, **{name: values[t] for name, values in fields.items()
                                              if values[t] is not None}) for t, step in enumerate(played.steps)]
    return msgspec.structs.replace(played, steps=steps)


@pytest.mark.parametrize("text", ["N", ""])
def test_admissible_actions_tell_equal_texts_apart_in_any_order(text):
    first, second = choices_digest(["go", "look"]), choices_digest(["look", "go"])
    group = [changed(episode(text, text), choices=[first, choices_digest(["look"])]),
             changed(episode(text, "M"), choices=[second, first])]
    assert pattern(keys(*group, state_key="observation+admissible").steps) == [[0, 1], [0, 2]]
    assert pattern(keys(*group).steps) == [[0, 0], [0, 1]]


@pytest.mark.parametrize("text", ["N", ""])
def test_the_state_of_a_cut_has_its_admissible_actions_too(text):
    here, there = choices_digest(["go"]), choices_digest(["look"])
    cut = changed(episode(text, end="turns", final=text), choices=[here])
    same, other = (keys(msgspec.structs.replace(cut, final_choices=choices), state_key="observation+admissible")
                   for choices in (here, there))
    assert same.cut_in == same.steps[0]
    assert other.cut_in not in (None, *other.steps[0])


def test_the_environments_own_states_decide_under_the_key_environment():
    group = [changed(episode("N", "x"), state=["cup taken", "cup hot"]),
             changed(episode("N", "y"), state=["nothing taken", "cup hot"])]
    assert pattern(keys(*group, state_key="environment").steps) == [[0, 1], [2, 1]]
    with pytest.raises(UserError, match="gave t no state"):
        keys(changed(episode("N"), state=[""]), state_key="environment")


@pytest.mark.parametrize("name", KEYS)
def test_with_stay_an_action_that_changed_nothing_leads_back_to_its_state(name):
    """S, then two actions that change nothing, then one that leads to X; the cut is one more that changes nothing."""
    group = [changed(episode("S", "N", "N", "X", end="turns", final="N"), unchanged=[True, True, False, True])]
    found = keys(*group, state_key=name, stay=True)
    assert pattern(found.steps) == [[0, 0, 0, 1]]
    assert found.cut_in == [None if name == "prompt" else found.steps[0][3]]
    assert found.steps[0][0] == keys(*group, state_key=name).steps[0][0]


def test_prompt_pools_equal_tokens_whatever_the_text_says():
    """The policy cannot distinguish them. The same text after another action is another state for it."""
    group = [episode("Nothing happens.", "x", prompts=[[1, 2], [3]]),
             episode("Nothing happens.", "y", prompts=[[1, 2, 4], [3]])]
    assert pattern(keys(*group, state_key="prompt").steps) == [[0, 1], [2, 1]]
    assert pattern(keys(*group).steps) == [[0, 1], [0, 2]]


def test_the_boundaries_of_prompt_tokens_count():
    """[1] and [1, 0] are not the same bytes."""
    assert pattern(keys(episode("s", "s", prompts=[[1], [1, 0]]), state_key="prompt").steps) == [[0, 1]]


@pytest.mark.parametrize(("text", "folded"), [
    ("You open the Drawer 12.  It is\tEMPTY!", "you open the drawer # it is empty"),
    ("price: $1,299.00 (was 9)", "price # was #"),
    ("item B07XYZ3, 2nd hand", "item # # hand"),
    ("12:30 on 3/4/25", "# on #"),
    ("a_b-c", "a b c"),
    ("\uff21\u00b2", "#"),
    ("...", ""),
    ("", ""),
])
def test_folding_removes_numbers_and_case_from_a_text(text, folded):
    assert fold(text) == folded


def test_normalized_pools_what_folds_alike():
    group = [episode(CLOSED, "the drawer 2 is closed", "A fridge"), episode("a  FRIDGE!", "a fridge door")]
    assert pattern(keys(*group, state_key="normalized").steps) == [[0, 0, 1], [1, 2]]


def test_similarity_by_hand():
    """abcd and abcx match in 3 of 4: 2·3 / 8 = 0.75. abcd and abxx: 0.5."""
    texts = ["abcd", "abcx", "abxx"]
    assert similarity(texts, 0.75) == {"abcd": "abcd", "abcx": "abcd", "abxx": "abxx"}
    assert similarity(texts, 0.76) == {text: text for text in texts}
    assert similarity(texts, 0.5) == dict.fromkeys(texts, "abcd")


@pytest.mark.parametrize(("pool", "texts", "threshold"), [
    (similarity, ("abcd", "abcx", "abxx"), 0.75),
    (embedding, ("one two", "one two three", "two three"), 0.6),
])
def test_greedy_clusters_depend_on_the_order(pool, texts, threshold):
    """The middle one resembles both others, which do not resemble each other: whoever comes first founds."""
    a, b, c = texts
    assert pool([a, b, c], threshold) == {a: a, b: a, c: c}
    assert pool([b, a, c], threshold) == {a: b, b: b, c: b}
    assert pool([c, b, a], threshold) == {c: c, b: c, a: a}


def cosine(one, other):
    """Counted trigrams in dictionaries, no hashing: equal to the embedding's while no two fall into one bucket."""
    def count(text):
        grams: dict[str, int] = {}
        words = f"  {' '.join(''.join(c if c.isalnum() else ' ' for c in text.lower()).split())} "
        for i in range(len(words) - 2):
            grams[words[i : i + 3]] = grams.get(words[i : i + 3], 0) + 1
        return grams
    a, b = count(one), count(other)
    dot = sum(n * b.get(gram, 0) for gram, n in a.items())
    return dot / (sum(n * n for n in a.values()) * sum(n * n for n in b.values())) ** 0.5


def test_embedding_by_hand():
    """ "ab" has trigrams `__a` `_ab` `ab_`, "abc" `__a` `_ab` `abc` `bc_`: 2 in common, 2 / √12 = 0.577."""
    assert embedding(["ab", "abc"], 0.57) == {"ab": "ab", "abc": "ab"}
    assert embedding(["ab", "abc"], 0.58) == {"ab": "ab", "abc": "abc"}


def test_embedding_reads_a_list_in_any_order():
    """Which difflib does not: the two keys differ in what they are for."""
    a = "On the shelf 1, you see a candle 1, a soapbottle 3, a spraybottle 2, and a toiletpaper 1."
    b = "On the shelf 1, you see a toiletpaper 1, a spraybottle 2, a soapbottle 3, and a candle 1."
    assert embedding([a, b], 0.95)[b] == a
    assert similarity([a, b], 0.95)[b] == b


@pytest.mark.parametrize("pool", TEXT_KEYS.values(), ids=TEXT_KEYS)
def test_odd_texts_are_pooled_like_others(pool):
    """Empty ones, other scripts, a lone surrogate, one character a thousand times; and no text at all."""
    odd = ["", " ", "寝室", "\ud800", "a" * 1000, "b" * 1000]
    assert pool(odd, 0.95).keys() == set(odd)
    assert pool(odd, 0.95)["b" * 1000] != pool(odd, 0.95)["a" * 1000]


words = st.text("ab1 .", max_size=12)
rows = st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=4)
long = st.tuples(st.sampled_from([BANNER * 3, BANNER.replace("bed", "cup") * 3, CLOSED]), words).map("".join)


def naive(texts, threshold):
    """A pass over every step, repeats too; each text is compared with the first member of each cluster in turn."""
    clusters: list[list[str]] = []
    for text in texts:
        for cluster in clusters:
            if SequenceMatcher(None, text, cluster[0]).ratio() >= threshold:
                cluster.append(text)
                break
        else:
            clusters.append([text])
    return {text: cluster[0] for cluster in clusters for text in cluster}


@settings(deadline=None)
@given(st.one_of(rows, st.lists(st.lists(long, min_size=1, max_size=4), min_size=1, max_size=3)),
       st.sampled_from([0.2, 0.5, 0.75, 0.8, 0.95, 0.999]))
def test_similarity_equals_the_naive_greedy_pass(rows, threshold):
    """Over 200 characters too, where difflib leaves out the popular ones."""
    texts = [text for row in rows for text in row]
    assert similarity(list(dict.fromkeys(texts)), threshold) == naive(texts, threshold)


@given(rows, st.sampled_from([0.5, 0.8, 0.95]))
def test_embedding_equals_a_naive_greedy_pass_over_cosines(rows, threshold):
    clusters: list[str] = []
    texts = list(dict.fromkeys(text for row in rows for text in row))
    expected = {}
    for text in texts:
        close = [first for first in clusters if cosine(text, first) >= threshold - 1e-12]
        clusters += [] if close else [text]
        expected[text] = close[0] if close else text
    assert embedding(texts, threshold) == expected


@given(st.data(), rows, st.sampled_from([exact, normalized]))
def test_texts_alone_decide_where_nothing_is_greedy(data, rows, pool):
    texts = list(dict.fromkeys(text for row in rows for text in row))
    assert pool(data.draw(st.permutations(texts)), 0.9) == pool(texts, 0.9)


@given(rows, st.lists(words.filter(bool), min_size=4, max_size=4), st.sampled_from(sorted(TEXT_KEYS)))
def test_the_state_of_a_cut_moves_no_other(rows, finals, name):
    """Keys of all steps are those of the same group without it, and it has the key that a step there would have."""
    options = make_options(state_key=name, similarity=0.6)
    plain = keys_of_group([episode(*row, end="lost") for row in rows], options)
    cut = keys_of_group([episode(*row, end="turns", final=f) for row, f in zip(rows, finals, strict=False)], options)
    assert cut.steps == plain.steps
    assert plain.cut_in == [None] * len(rows)
    pairs = [zip(row, found, strict=True) for row, found in zip(rows, plain.steps, strict=True)]
    known = dict(pair for row in pairs for pair in row)
    assert all(known.get(text, key) == key for text, key in zip(finals, cut.cut_in, strict=False))


def test_steps_of_credit_know_their_tokens_and_the_state_of_a_cut():
    """Only the last step of an episode that its budget ended, and only where the text after it was recorded."""
    group = [episode("S", "X", end="turns", final="S"), episode("S", "X", end="context", final="Y"),
             episode("S", end="lost", final="X"), episode("S", final="X"), episode("S", "X", end="turns")]
    made = credit_steps(group, make_options())
    assert [step.tokens for step in made[0]] == [2, 3]
    assert [[step.cut_in for step in row] for row in made] == [
        [None, made[0][0].state], [None, key_function("train/1", "t")("Y")], [None], [None], [None, None]]


def test_a_prompt_key_has_no_state_after_an_episode_cut_off():
    group = [episode("S", end="turns", final="S")]
    assert credit_steps(group, make_options(state_key="prompt"))[0][0].cut_in is None


def test_an_episode_without_steps_is_refused():
    with pytest.raises(ValueError, match="has no steps"):
        credit_steps([episode("S"), episode()], make_options())

PLAYED = Episode(
    ticket=Ticket(group="train/1", k=0, size=1, task="t", seed=0, kind="train", temperature=1.0, max_steps=9),
    steps=[Step(observation="A", prompt_ids=np.zeros(1, np.int32), response_ids=np.zeros(1, np.int32),
                logprobs=np.zeros(1, np.float32), spans=[], action="go", valid=True, admissible=True, reward=0.0)],
    won=False, end="lost", worker="w", attempt=1, seconds=0.0, engine="e")


class Numbers:
    """Keys that are no texts, which the archive could not hold after the first step."""

    Options = NoOptions
    knows_cuts = False

    def keys(self, group, options):
        return Keys(steps=[[len(step.observation) for step in one.steps] for one in group], cut_in=[None] * len(group))


class NoModel(Numbers):
    """Options that are none."""

    Options = dict


def test_a_key_that_is_no_text_is_named():
    with pytest.raises(UserError, match=r"the state key .*Numbers returned 1, which is no text"):
        keys_of_group([PLAYED], make_options(state_key=f"{__name__}:Numbers"))


def test_options_that_are_no_model_are_named():
    with pytest.raises(UserError, match=r"NoModel\.Options is no options model; make it a subclass of pydantic"):
        make_options(state_key=f"{__name__}:NoModel")
