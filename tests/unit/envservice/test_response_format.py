"""The format of answers with a thought, apart from the action, which tests/unit/envservice/alfworld covers."""

import pytest

from envservice.response_format import without_thought


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
