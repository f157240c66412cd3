"""The format of answers with a thought, apart from the action, which tests/unit/envservice/alfworld covers."""

import pytest

from envservice.search.protocol import project, query_of
from envservice.text.meta_answers import read_meta
from envservice.text.response_format import without_thought
from envservice.text.tool_calls import parse_calls


@pytest.mark.parametrize(("text", "said"), [
    ("<think>\nhm\n</think>\n\ngo", "go"),
    ("hm</think>go\n", "go"),
    ("<think>\n\n</think>\n\n<think>\nhm\n</think>\n\ngo", "go"),
    (" go on ", "go on"),
    ("<think>\nhm, go", ""),
    ("<think></think><think>hm, go", ""),
    ("go\n<think>hm", "go"),
    ("", "")])
def test_an_answer_says_what_follows_its_last_thought(text: str, said: str):
    """A prompt may end with the tag that opens the thought, and an answer may be cut before the thought ends."""
    assert without_thought(text) == said


STUCK = 100_000
"""Times that a stuck model repeats a tag. A parser that reads the rest from each of them takes a quarter of an hour."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("parse", "text", "nothing"), [
    (read_meta, "<planning>" * STUCK, ""), (read_meta, "<action>" * STUCK, ""),
    (read_meta, f"<planning>{'<' * 8 * STUCK}</planning><action></action>", ""),
    (project, "<search>" * STUCK, ""), (query_of, f"<answer>{'<search>' * STUCK}</answer>", ""),
    (parse_calls, "<tool_call>" * STUCK, []),
    (parse_calls, f"<tool_call><function=f>{'<parameter=a>' * STUCK}</function></tool_call>", []),
], ids=["block", "action", "markup", "search", "query", "call", "parameter"])
def test_an_answer_that_repeats_a_tag_is_read_at_once(parse, text, nothing):
    """Parsers run in the worker's event loop, which renews its claims and sends its heartbeats."""
    found = parse(text)
    assert getattr(found, "action", getattr(found, "calls", found)) == nothing
