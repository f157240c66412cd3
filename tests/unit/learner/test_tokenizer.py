"""The tokenizer made from demonstrations: lossless, and cut where copying needs it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from learner.tokenizer import ASSISTANT, END, STOP, TAGS, USER, counted_nouns, train_tokenizer

PROMPT = (
    "Task: put some mug on shelf\nDone: go to cabinet 1; open cabinet 1\n"
    "Now: On the cabinet 1, you see a mug 2, and a pen 13.\nActions: go to shelf 1; take mug 2 from cabinet 1\n"
)
ANSWER = "<think>find mug</think><action>take mug 2 from cabinet 1</action>"
TEXTS = [PROMPT, ANSWER, "Now: On the shelf 7, you see nothing.\n"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS)


def pieces(tokenizer, text):
    return [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def test_nouns_are_the_words_that_numbers_follow():
    assert counted_nouns(TEXTS) == ["cabinet", "mug", "pen", "shelf"]


def test_noun_and_number_are_tokens_of_their_own_wherever_they_stand(tokenizer):
    answer = pieces(tokenizer, ANSWER)
    assert answer == ["<think>", "find", " mug", "</think>", "<action>", "take", " mug", " 2", " from", " cabinet",
                      " 1", "</action>"]
    prompt = pieces(tokenizer, PROMPT)
    assert prompt.count(" mug") == 3  # task, observation, action: one and the same token
    assert "; take" in prompt
    assert pieces(tokenizer, " 0 37 63") == [" 0", " 37", " 63"]


def test_one_token_per_tag_that_survives_decoding_without_special_tokens(tokenizer):
    ids = tokenizer(ANSWER + END, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ANSWER
    assert all(len(tokenizer(tag, add_special_tokens=False)["input_ids"]) == 1 for tag in TAGS)
    assert ids[-2] == tokenizer.convert_tokens_to_ids(STOP)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60) | st.from_regex(r"(go to |take |mug|shelf| \d+|\n|; |<action>){1,12}", fullmatch=True))
def test_any_text_round_trips(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_a_saved_folder_loads_as_the_same_tokenizer(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(PROMPT + ANSWER)["input_ids"] == tokenizer(PROMPT + ANSWER)["input_ids"]
    assert loaded.eos_token_id == loaded.pad_token_id == tokenizer.convert_tokens_to_ids(END)
    chat = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == f"{USER}hi{END}{ASSISTANT}"


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    assert train_tokenizer(TEXTS).get_vocab() == tokenizer.get_vocab()


def test_no_texts_are_refused():
    with pytest.raises(ValueError, match="needs texts"):
        train_tokenizer([])
