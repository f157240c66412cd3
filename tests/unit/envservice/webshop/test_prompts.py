"""The texts of the two prompts, and the parsing of answers."""

import pytest

from envservice.base import Outcome, Turn
from envservice.webshop.prompts import WebshopCompactTemplate, WebshopFullTemplate, page_text

TASK = "webshop/train/0"


@pytest.fixture
def wish(shop):
    return shop.goal(TASK).instruction


def play(shop, *actions):
    """Plays actions. Returns the first outcome, the turns and the last outcome."""
    session = shop.open(TASK)
    first = now = session.reset()
    turns = []
    for action in actions:
        turns.append(Turn(observation=now.observation, action=action, admissible=action in now.admissible_actions))
        now = session.step(action)
    return first, turns, now


def test_the_first_full_prompt_has_no_history(shop, wish):
    text = WebshopFullTemplate(2).render(*play(shop))
    assert f"Your task is to: {wish}.\nYour current observation is: 'Search'.\n" in text
    assert "are:\n[\n'search[<your query>]',\n'click[search]',\n].\n" in text
    assert "<think> </think>" in text
    assert "<action> </action>" in text
    assert text.startswith("You are an expert autonomous agent operating in the WebShop e‑commerce environment.")


def test_a_full_prompt_tells_the_last_steps(shop):
    text = WebshopFullTemplate(2).render(*play(shop, "search[rug]", "click[b0rug]", "x"))
    assert "already taken 3 step(s). Below are the most recent 2 observations" in text
    assert ("[Observation 2: ''Back to Search' [SEP] 'Page 1 (Total results: 1)' [SEP] 'Next >' [SEP] 'B0RUG' [SEP] "
            "'Oskavi Area Rug' [SEP] '$100.0'', Action 2: 'click[b0rug]']\n[Observation 3: '") in text
    assert "You are now at step 4 and your current observation is: 'Back to Search' [SEP] '< Prev' [SEP] " in text


def test_without_history_none_is_told(shop):
    assert "already taken" not in WebshopFullTemplate(0).render(*play(shop, "search[rug]"))


def test_a_full_prompt_that_would_be_too_long_drops_its_history(shop):
    first, turns, now = play(shop, "search[rug]")
    long = [Turn(observation="x" * 13_000, action="x", admissible=False)]
    assert WebshopFullTemplate(2).render(first, long, now) == WebshopFullTemplate(0).render(first, turns, now)


def test_page_texts_differ_where_observations_do(shop, wish):
    assert page_text(f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] < Prev", wish) == (
        "'Back to Search' [SEP] '< Prev'")
    assert page_text("Thank you for shopping with us! [SEP] None", wish) == "Thank you for shopping with us! [SEP] None"


def test_a_compact_prompt_remembers_what_pages_do_not_show(shop):
    text = WebshopCompactTemplate(2).render(*play(
        shop, "search[brisko lamp]", "click[b0desk]", "click[< prev]", "click[b0lamp]", "click[features]",
        "click[< prev]", "click[large]", "click[red]", "click[black | white]", "click[green]"))
    assert text.splitlines()[1:] == [
        "Done: click[black | white]; click[green] failed",
        "Opened: [b0desk] [b0lamp]",
        "Item: 21 brisko cordless table lamp",
        "Options: [red], [black | white] (color); [large] (size)",
        "Chosen: [large], [black | white]",
        "Features: dimmable lamp; charges by usb",
    ]


def test_a_compact_prompt_forgets_with_the_page(shop):
    text = WebshopCompactTemplate().render(*play(
        shop, "search[brisko lamp]", "click[b0lamp]", "click[features]", "click[< prev]", "click[red]", "click[< prev]",
        "click[b0lamp]"))
    assert "Chosen: -\nFeatures: -\n" in text


def test_compact_results_are_in_whole_dollars(shop):
    lines = WebshopCompactTemplate().render(*play(shop, "search[brisko lamp]")).splitlines()
    assert lines[1:] == [
        "Done: search[brisko lamp]", "Opened: -", "Results: page 1 of 2", "[b0lamp] 21 brisko cordless table lamp",
        "[b0desk] 10 to 20 quillan desk lamp"]


def test_the_compact_task_is_the_instruction_taken_apart(shop):
    first, _, _ = play(shop)
    wish = "Find me lamps with shade with color: Red, and size: 6\" x 4\", and price lower than 40.00 dollars"
    other = Outcome(observation=f"WebShop [SEP] Instruction: [SEP] {wish} [SEP] Search", admissible_actions=[])
    assert WebshopCompactTemplate().render(other, [], first).startswith(
        "Task: find me lamps with shade; color: [red], size: [6\" x 4\"]; under 40\n")


@pytest.mark.parametrize("form", ["text", "text_rich"])
def test_both_observation_forms_read_alike(files, form):
    from envservice.webshop.environment import WebshopEnvironment
    from envservice.webshop.files import load_stock
    from envservice.webshop.nouns import fallback
    from services.config.env import WebshopSection

    stock = load_stock(files.write())
    plain, other = (WebshopEnvironment(stock, WebshopSection(observation=each), tagger=("", fallback))
                    for each in ("text", form))
    way = ("search[lamp]", "click[b0lamp]", "click[red]", "click[features]", "click[< prev]")
    for length in range(len(way) + 1):
        for template in (WebshopCompactTemplate(), WebshopFullTemplate()):
            assert template.render(*play(other, *way[:length])) == template.render(*play(plain, *way[:length]))


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("<think>a</think><action>Click[Red]</action>", "click[red]", True),
        ("<action> search[x] </action> <think></think> more", "search[x]", True),
        ("<think>a<action>click[red]</action>", "click[red]", False),
        ("<THINK>a</THINK><ACTION>click[red]</ACTION>", "click[red]", False),
        ("<think>红</think><action>click[red]</action>", "click[red]", False),
        ("<think>a</think> I would rather click[buy now]", "rather click[buy now]"[-20:], False),
        ("", "", False),
    ],
)
def test_answers_are_read_by_the_rule_of_the_pipeline(text, action, valid):
    for template in (WebshopCompactTemplate(), WebshopFullTemplate()):
        parsed = template.parse(text)
        assert (parsed.action, parsed.valid) == (action, valid)
