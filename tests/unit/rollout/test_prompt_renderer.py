"""Prompts to tokens and answers to actions, with a tokenizer made here."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envservice.alfworld.prompts import AlfworldCompactTemplate, AlfworldFullTemplate
from envservice.base import Outcome
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import EnvSection
from services.errors import UserError

FIRST = Outcome(observation="-= Welcome =-\n\nYou are in a room. Your task is to: look.", admissible_actions=["look"])


def byte_tokenizer(*tags: str, chat: bool = False) -> PreTrainedTokenizerFast:
    """A token per byte, an end token, and `tags` as tokens that are not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)
    if chat:
        fast.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|end|>{% endfor %}[assistant]"
    return fast


def test_compact_prompt_is_raw_text():
    """No token is added to it."""
    tokenizer = byte_tokenizer()
    text = PromptRenderer(template=AlfworldCompactTemplate(6), tokenizer=tokenizer)
    ids = text.prompt(FIRST, [], FIRST)
    assert tokenizer.decode(ids) == text.template.render(FIRST, [], FIRST)


def test_full_prompt_goes_through_the_chat_template():
    """One user message, then the assistant's turn is opened."""
    tokenizer = byte_tokenizer(chat=True)
    text = PromptRenderer(template=AlfworldFullTemplate(2), tokenizer=tokenizer)
    ids = text.prompt(FIRST, [], FIRST)
    assert tokenizer.decode(ids) == f"[user]{text.template.render(FIRST, [], FIRST)}<|end|>[assistant]"
    assert tokenizer.eos_token_id in ids


def test_answers_end_at_the_tag_where_it_is_a_token():
    """Else at the model's end token alone; the tag survives decoding, the end token does not."""
    tags = ("<think>", "</think>", "<action>", "</action>")
    tagged, plain = byte_tokenizer(*tags), byte_tokenizer()
    template = AlfworldCompactTemplate(6)
    assert set(PromptRenderer(template=template, tokenizer=plain).stop_ids) == {plain.eos_token_id}
    text = PromptRenderer(template=template, tokenizer=tagged)
    assert set(text.stop_ids) == {tagged.eos_token_id, tagged.convert_tokens_to_ids("</action>")}
    answer = tagged("<think></think><action>Go North</action><|end|>", return_tensors="np")["input_ids"][0]
    assert (text.parse(answer).action, text.parse(answer).valid) == ("go north", True)


def test_a_chat_prompt_needs_a_chat_template(tmp_path):
    """A base model is refused in one line before anything is sampled."""
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no chat template"):
        load_text(str(tmp_path), EnvSection())
