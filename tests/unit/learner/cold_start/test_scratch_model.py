"""The tokenizer made from demonstrations: lossless, and cut where copying needs it."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen2Config

from learner.cold_start.scratch_model import ASSISTANT, END, STOP, USER, numbered_nouns, train_tokenizer

PROMPT = (
    "Task: put some mug on shelf\nDone: go to cabinet 1; open cabinet 1\n"
    "Now: On the cabinet 1, you see a mug 2, and a pen 13.\nActions: go to shelf 1; take mug 2 from cabinet 1\n"
)
ANSWER = "<think>find mug</think><action>take mug 2 from cabinet 1</action>"
TEXTS = [PROMPT, ANSWER, "Now: On the shelf 7, you see nothing.\n"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS)


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pieces(tokenizer, text):
    return [tokenizer.decode([token]) for token in ids(tokenizer, text)]


def test_nouns_are_the_words_that_numbers_follow():
    assert numbered_nouns(TEXTS) == ["cabinet", "mug", "pen", "shelf"]


def test_noun_and_number_are_tokens_of_their_own_wherever_they_stand(tokenizer):
    assert pieces(tokenizer, ANSWER) == [
        "<think>find", " mug", "</think><action>take", " mug", " 2", " from", " cabinet", " 1", "</action>"]
    prompt = pieces(tokenizer, PROMPT)
    assert prompt.count(" mug") == 3  # task, observation, action: one and the same token
    assert ".\nActions: go to" in prompt
    assert pieces(tokenizer, " 0 37 63") == [" 0", " 37", " 63"]


def test_a_noun_is_never_cut_by_a_piece_that_it_begins_with(tokenizer):
    texts = ["Now: a apple 1, a pen 1, a pencil 2.", "Now: a pencil 1, a pen 2, a apple 3."]
    assert [piece for piece in pieces(train_tokenizer(texts), texts[0]) if piece.strip().isalpha()] == [
        " apple", " pen", " pencil"]


def test_answers_end_with_one_token_that_survives_decoding_without_special_tokens(tokenizer):
    tokens = ids(tokenizer, ANSWER + END)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == ANSWER
    assert tokens[-2] == tokenizer.convert_tokens_to_ids(STOP)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60) | st.from_regex(r"(go to |take |mug|shelf| \d+|\n|; |<action>){1,12}", fullmatch=True))
def test_any_text_round_trips_in_its_normal_form(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text)) == unicodedata.normalize("NFC", text)


def test_a_model_folder_loads_as_the_same_tokenizer(tokenizer, tmp_path):
    """transformers puts a tokenizer class of its own over that of every Qwen2 folder."""
    tokenizer.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer)
    for text in (PROMPT, ANSWER, "An unseen text: 123 spoons,\n\t and  caf\u00e9s."):
        assert ids(loaded, text) == ids(tokenizer, text)
        assert loaded.decode(ids(loaded, text), skip_special_tokens=True) == text
    assert loaded.eos_token_id == loaded.pad_token_id == tokenizer.convert_tokens_to_ids(END)
    chat = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == f"{USER}hi{END}{ASSISTANT}"


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    assert train_tokenizer(TEXTS).get_vocab() == tokenizer.get_vocab()


def test_no_texts_are_refused():
    with pytest.raises(ValueError, match="needs texts"):
        train_tokenizer([])


SHOP = (
    "Task: brass lamp; size: [very large]\nDone: search[brass lamp]; click[b12]\n"
    "Results:\n[b12] 24 oskavi brass lamp\n")


def test_without_numbered_names_words_and_what_stands_in_brackets_are_tokens():
    """A query in brackets is none: no page shows it so, and its words are to be copied one by one."""
    answer = "<think>may fit</think><action>click[b12]</action>"
    tokenizer = train_tokenizer([SHOP, answer] * 3, names="words")
    cut = pieces(tokenizer, SHOP)
    assert cut.count("[b12]") == 2
    assert "[very large]" in cut
    assert cut.count(" brass") == 2
    assert "[brass lamp]" not in cut
    assert pieces(tokenizer, answer)[-5:] == [" fit", "</think><action>", "click", "[b12]", "</action>"]
    assert tokenizer.decode(ids(tokenizer, SHOP)) == SHOP
