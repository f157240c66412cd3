"""Messages that a chat template leaves out are noticed in every conversation, though not every one is looked at."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer

from services.chat import ChatFormat, ChatRefused

CALL = {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"n": 5}}}
TEMPLATE = """
{%- set said = namespace(user=-1, system=-1) %}
{%- for message in messages if message.role == 'user' %}{% set said.user = message.place %}{% endfor %}
{%- for message in messages if message.role == 'system' %}{% set said.system = message.place %}{% endfor %}
{%- for message in messages if CONDITION %}
    {{- message.role }}: {{ message.content }}
    {%- for call in message.tool_calls or () %} calls {{ call.function.name }}{% endfor %}
{% endfor %}"""
CONDITIONS = {
    "writes all": "true",
    "leaves out results of tools, as Phi's": "message.role != 'tool'",
    "writes the last system message, as that of DeepSeek's distilled models":
        "message.role != 'system' or message.place == said.system",
    "writes the system message before a last question, as Mistral's":
        "message.role != 'system' or messages[-1].role == 'user'",
    "writes the calls of the last question": "not message.tool_calls or message.place > said.user",
    "writes the first result of a tool": "message.role != 'tool' or messages[:message.place]"
                                         "|selectattr('role', 'equalto', 'tool')|list|length == 0"}


def chat(condition: str) -> ChatFormat:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("CONDITION", condition)
    return ChatFormat(tokenizer=tokenizer)


def conversation(random: Random, questions: int = 3) -> list[dict[str, Any]]:
    """Returns questions with calls of tools, their results and answers."""
    told = [{"role": "system", "content": "be brief"}] * random.randrange(2)
    for _ in range(random.randint(1, questions)):
        told += [{"role": "user", "content": "x"}]
        told += [{"role": "system", "content": "be kind"}] * (random.random() < 0.2)
        for _ in range(random.randrange(4)):
            told += [{"role": "assistant", "content": random.choice(["", "so"]), "tool_calls": [CALL]}]
            told += [{"role": "tool", "content": random.choice(["", "5"])}] * random.choice([1, 1, 2])
        told += [{"role": "assistant", "content": "y"}] * random.randrange(2)
    return [{**message, "place": place} for place, message in enumerate(told)]


def refusal(form: ChatFormat, told: list[dict[str, Any]]) -> str | None:
    try:
        form.text(told)
    except ChatRefused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_conversation_is_refused_whatever_was_seen_before(condition: str):
    random, seen = Random(0), chat(condition)
    verdicts = set()
    for _ in range(400):
        told = conversation(random)
        seen_before = refusal(seen, told)
        assert seen_before == refusal(ChatFormat(tokenizer=seen.tokenizer), told)
        verdicts.add(seen_before is None)
    assert verdicts == ({True} if condition == "true" else {True, False})


def test_the_memory_of_what_a_template_writes_is_bounded():
    """Each order of roles was kept: an agent with tools makes new ones for ever."""
    random, seen = Random(0), chat(CONDITIONS["writes all"])
    sizes = []
    for _ in range(3):
        for _ in range(400):
            seen.text(conversation(random, questions=6))
        sizes.append(len(seen._complete))
    assert sizes[2] - sizes[1] < sizes[0] / 10
