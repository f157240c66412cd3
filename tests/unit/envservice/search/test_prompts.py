import pytest

from envservice.search.prompts import information, last_answer, matches, normalised, parse_action


@pytest.mark.parametrize(("text", "action", "valid"), [
    ("<think>x</think><search> who is it </search>", "<search>who is it</search>", True),
    ("<answer>\nParis\n</answer>", "<answer>Paris</answer>", True),
    ("no thought is asked for: <ANSWER>Paris</ANSWER>", "<answer>Paris</answer>", True),
    ("<search>one</search> and more", "<search>one</search>", True),
    ("<search>one</search><search>two</search>", "<search>one</search>", False),
    ("<search>one</search><answer>two</answer>", "<search>one</search>", False),
    ("<answer>two</answer><search>one</search>", "<search>one</search>", False),
    ("<answer>one</answer> then <answer>two</answer>", "<answer>one</answer>", False),
    ("<search>open <answer>two</answer>", "<answer>two</answer>", False),
    ("<search>never closed", "", False),
    ("Paris", "", False),
    ("", "", False),
])
def test_an_answer_becomes_an_action_and_its_validity(text: str, action: str, valid: bool):
    parsed = parse_action(text)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_answers_are_compared_after_the_published_normalisation():
    assert normalised("The  Beatles' \"An\" A-Team!") == "beatles ateam"
    assert matches("the Eiffel Tower.", ["eiffel tower"])
    assert matches("1969", ["July 1969", "1969"])
    assert not matches("theatre", ["atre"]), "articles are words"
    assert not matches("", ["x"])


def test_the_last_answer_of_all_actions_counts():
    assert last_answer("<answer>a</answer><search>q</search><answer> b </answer>") == "b"
    assert last_answer("<search>q</search>") is None


def test_evidence_is_json_in_tags():
    expected = '<information>{"result": "Doc 1: \\"T\\"\\ntext\\nDoc 2: x\\n"}</information>'
    assert information(['"T"\ntext', "x"]) == expected
    assert information([]) == '<information>{"result": "No search results found."}</information>'
