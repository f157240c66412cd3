"""Prompts to tokens and answers to actions, with a tokenizer made here."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envservice.alfworld.prompts import AlfworldCompactTemplate, AlfworldFullTemplate
from envservice.base import Outcome
from rollout.prompt_renderer import PromptRenderer, load_text
from services.chat import TokenUnknown
from services.config.tree import EnvSection, ModelSection
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


def test_a_question_of_the_judge_task_follows_the_prompt_and_its_answer_is_read():
    """Raw text has one line more; a chat has one message, with the instruction."""
    raw = PromptRenderer(template=AlfworldCompactTemplate(6), tokenizer=byte_tokenizer("</action>"))
    assert raw.tokenizer.decode(raw.question(FIRST, [], FIRST, "look")) == (
        raw.template.render(FIRST, [], FIRST) + "Judge: look\n")
    chat = PromptRenderer(template=AlfworldFullTemplate(2), tokenizer=byte_tokenizer(chat=True))
    asked = chat.tokenizer.decode(chat.question(FIRST, [], FIRST, "look"))
    assert asked.startswith(f"[user]{chat.template.render(FIRST, [], FIRST)}")
    assert asked.endswith("<action>good</action> or <action>bad</action>.<|end|>[assistant]")
    for text in (raw, chat):
        answer = text.tokenizer("<think></think><action>bad</action><|end|>", return_tensors="np")["input_ids"][0]
        assert text.verdict(answer) == "bad"


def test_answers_end_at_the_tag():
    """By its number where it is one token, else by its text. It survives decoding, the end token does not."""
    tags = ("<think>", "</think>", "<action>", "</action>")
    tagged, plain = byte_tokenizer(*tags), byte_tokenizer()
    template = AlfworldCompactTemplate(6)
    several = PromptRenderer(template=template, tokenizer=plain)
    assert (set(several.stop_ids), several.stop_texts) == ({plain.eos_token_id}, ("</action>",))
    text = PromptRenderer(template=template, tokenizer=tagged)
    assert set(text.stop_ids) == {tagged.eos_token_id, tagged.convert_tokens_to_ids("</action>")}
    assert text.stop_texts == ()
    answer = tagged("<think></think><action>Go North</action><|end|>", return_tensors="np")["input_ids"][0]
    assert (text.parse(answer).action, text.parse(answer).valid) == ("go north", True)


@pytest.mark.parametrize(("answer", "ends"), [
    ("<action>go</action>", True), ("<action>go</action>\n<", True), ("<action>go<|end|>", True),
    ("<action>go</action", False), ("</actio n>", False)])
def test_an_answer_is_cut_that_reaches_neither_a_tag_nor_an_end_token(answer: str, ends: bool):
    """In the second the last token of the tag has text behind it, as `>\n` of a byte-level vocabulary."""
    text = PromptRenderer(template=AlfworldCompactTemplate(6), tokenizer=byte_tokenizer())
    assert text.ends(text.tokenizer(answer, return_tensors="np")["input_ids"][0]) == ends


def test_a_chat_prompt_needs_a_chat_template(tmp_path):
    """A base model is refused in one line before anything is sampled."""
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no chat template"):
        load_text(str(tmp_path), EnvSection())


THINKING = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""
"""As reasoning models of the Qwen3 family have it: the template opens the thought, or closes an empty one."""
TAGGED = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<action>", "</action>")


def saved(folder, template, *tags, ends=None):
    tokenizer = byte_tokenizer(*tags)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if ends is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return str(folder)


def parsed(text, answer):
    return text.parse(text.tokenizer(answer, return_tensors="np")["input_ids"][0])


@pytest.mark.parametrize(("thinks", "answer"), [
    (True, "find the mug</think><action>look</action>"), (False, "<action>look</action>")])
def test_a_thought_that_the_template_opens_belongs_to_the_answer(tmp_path, thinks, answer):
    """A reasoning model's answers are valid though their first tag stands in the prompt."""
    settings = ModelSection(chat_template_kwargs={} if thinks else {"enable_thinking": False})
    text = load_text(saved(tmp_path, THINKING, *TAGGED), EnvSection(), settings)
    prompt = text.tokenizer.decode(text.prompt(FIRST, [], FIRST))
    assert prompt.endswith("<think>\n" if thinks else "<think>\n\n</think>\n\n")
    assert (parsed(text, answer).action, parsed(text, answer).valid) == ("look", True)
    assert not parsed(text, "look").valid


def test_tags_that_are_special_tokens_are_read(tmp_path):
    """Decoding leaves special tokens out, and with them the tags of some reasoning models."""
    folder = saved(tmp_path, THINKING.replace("<think>\n{% endif %}", "{% endif %}"), *TAGGED)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in described["added_tokens"]:
        token["special"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    text = load_text(folder, EnvSection())
    answer = parsed(text, "<think>so</think><action>look</action><|end|>")
    assert (answer.action, answer.valid) == ("look", True)


@pytest.mark.parametrize(("ends", "stop_ids"), [(7, {7}), ([7, 9], {7, 9}), (None, set())])
def test_answers_end_where_the_generation_config_says(tmp_path, ends, stop_ids):
    """Beside the tokenizer's end token: Llama 3 names its end of turn there alone."""
    text = load_text(saved(tmp_path, THINKING, ends=ends), EnvSection())
    assert set(text.stop_ids) == {text.tokenizer.eos_token_id, *stop_ids}


def test_a_system_prompt_comes_first(tmp_path):
    text = load_text(saved(tmp_path, THINKING, *TAGGED), EnvSection(), ModelSection(system_prompt="Be brief."))
    assert text.tokenizer.decode(text.prompt(FIRST, [], FIRST)).startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_a_template_without_system_prompts_is_named(tmp_path):
    """Gemma 2 raises an exception of its own for one."""
    refusing = ("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
                "{{ messages[0].content }}")
    folder = saved(tmp_path, refusing)
    load_text(folder, EnvSection())
    with pytest.raises(UserError, match=r"refuses a system prompt \(System role not supported\)"):
        load_text(folder, EnvSection(), ModelSection(system_prompt="Be brief."))


def test_a_template_can_be_given_to_a_base_model(tmp_path):
    """Here the ChatML template that vLLM ships."""
    spec = find_spec("vllm")
    shipped = Path(str(spec and spec.origin)).parent / "transformers_utils" / "chat_templates"
    template = shipped / "template_chatml.jinja"
    folder = saved(tmp_path, None, *TAGGED)
    text = load_text(folder, EnvSection(), ModelSection(chat_template=template))
    assert text.tokenizer.decode(text.prompt(FIRST, [], FIRST)).endswith("<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(UserError, match="cannot be read"):
        load_text(folder, EnvSection(), ModelSection(chat_template=tmp_path / "none.jinja"))


def test_a_prompt_with_a_token_that_the_model_does_not_know_is_refused(tmp_path):
    """Someone added tokens to the tokenizer alone; the size is that of config.json."""
    folder = saved(tmp_path, THINKING, *TAGGED)
    size = len(load_text(folder, EnvSection()).tokenizer)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size - 1}))
    text = load_text(folder, EnvSection())
    with pytest.raises(TokenUnknown, match=rf"the prompt holds </action>, .* beyond the {size - 1} "):
        text.prompt(FIRST, [], FIRST)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
    assert max(load_text(folder, EnvSection()).prompt(FIRST, [], FIRST)) == size - 1
