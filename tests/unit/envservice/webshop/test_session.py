"""Pages, buttons and actions, with layouts written out by hand."""

from dataclasses import replace

import pytest

from envservice.webshop.environment import WebshopEnvironment
from envservice.webshop.files import load_stock
from envservice.webshop.nouns import fallback
from envservice.webshop.session import parse_action
from services.config.env import WebshopSection

TASK = "webshop/train/0"


@pytest.fixture
def session(shop):
    return shop.open(TASK)


@pytest.fixture
def wish(shop):
    return shop.goal(TASK).instruction


def play(session, *actions):
    outcome = session.reset()
    for action in actions:
        outcome = session.step(action)
    return outcome


def clicks(outcome):
    return [action.removeprefix("click[").removesuffix("]") for action in outcome.admissible_actions]


def test_the_search_page(session, wish):
    first = play(session)
    assert first.observation == f"WebShop [SEP] Instruction: [SEP] {wish} [SEP] Search"
    assert first.admissible_actions == ["search[<your query>]", "click[search]"]
    assert (first.reward, first.done, first.won, first.info) == (0.0, False, False, {"task_score": 0.0})


def test_the_results_page(session, wish):
    page = play(session, "search[brisko lamp]")
    assert page.observation == (
        f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] "
        "B0LAMP [SEP] Brisko Cordless Table Lamp [SEP] $20.5 [SEP] B0DESK [SEP] Quillan Desk Lamp [SEP] $10.0 to $20.0")
    assert clicks(page) == ["back to search", "next >", "b0lamp", "b0desk"]


def test_the_second_results_page_goes_back_and_may_be_empty(session, wish):
    page = play(session, "search[lamp]", "click[next >]")
    assert page.observation == (
        f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] Page 2 (Total results: 2) [SEP] < Prev [SEP] Next >")
    assert clicks(page) == ["back to search", "< prev", "next >"]
    assert "Page 1 " in session.step("click[< prev]").observation


def test_the_item_page(session, wish):
    page = play(session, "search[lamp]", "click[b0lamp]")
    assert page.observation == (
        f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] black | white [SEP] "
        "size [SEP] large [SEP] Brisko Cordless Table Lamp [SEP] Price: $20.5 [SEP] Rating: N.A. [SEP] "
        "Description [SEP] "
        "Features [SEP] Reviews [SEP] Buy Now")
    assert clicks(page) == ["back to search", "< prev", "description", "features", "reviews", "buy now", "red",
                            "black | white", "large"]


def test_a_chosen_option_is_not_seen(session):
    page = play(session, "search[lamp]", "click[b0lamp]")
    assert session.step("click[red]") == page


@pytest.mark.parametrize(("name", "text"), [
    ("description", " [SEP] A lamp that goes anywhere."), ("features", " [SEP] Dimmable lamp [SEP] Charges by usb"),
    ("reviews", "")])
def test_sub_pages_hold_what_is_not_empty(session, wish, name, text):
    page = play(session, "search[lamp]", "click[b0lamp]", f"click[{name}]")
    assert page.observation == f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] < Prev{text}"
    assert clicks(page) == ["back to search", "< prev"]


def test_attributes_are_shown_where_asked_for(files):
    shop = WebshopEnvironment(load_stock(files.write()), WebshopSection(show_attributes=True), tagger=("", fallback))
    session = shop.open(TASK)
    assert " [SEP] Reviews [SEP] Attributes [SEP] Buy Now" in play(session, "search[lamp]", "click[b0lamp]").observation
    assert session.step("click[attributes]").observation.endswith(
        "< Prev [SEP] cordless [SEP] dimmable [SEP] garden [SEP] table lamps [SEP] "
        "Home & Kitchen › Lighting › Table Lamps")


def test_a_purchase_of_what_was_asked_for(shop, session):
    color = dict(shop.goal(TASK).options)["color"]
    end = play(session, "search[lamp]", "click[b0lamp]", "click[large]", f"click[{color}]", "click[buy now]")
    assert (end.reward, end.done, end.won, end.admissible_actions) == (1.0, True, True, [])
    assert end.info["task_score"] == end.info["r_att"] == end.info["r_option"] == 1.0
    assert end.observation.startswith(
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        "Purchased [SEP] asin [SEP] B0LAMP [SEP] options [SEP] {\"size\": \"large\", \"color\": \"")
    assert end.observation.endswith(" [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP] Reward Details [SEP] None")


def test_a_partial_score_earns_no_reward(session):
    end = play(session, "search[lamp]", "click[b0lamp]", "click[large]", "click[buy now]")
    assert end.info["task_score"] == pytest.approx(3 / 4)
    assert (end.reward, end.won, end.done) == (0.0, False, True)


@pytest.mark.parametrize(("strict", "own"), [(False, 1.0), (True, 3 / 4)])
def test_a_purchase_tells_its_score_by_both_matches_of_options(files, strict, own):
    """`large` for `x-large`: the original's match takes it, the exact one does not. Attribute, colour and price fit:
    three of four parts."""
    files.products[0]["customization_options"]["Size"].append({"value": "x-large"})
    shop = WebshopEnvironment(load_stock(files.write()), WebshopSection(strict_options=strict), tagger=("", fallback))
    task, color = next((task, dict(shop.goal(task).options)["color"]) for task in shop.tasks("train")
                       if dict(shop.goal(task).options).get("size") == "x-large")
    end = play(shop.open(task), "search[lamp]", "click[b0lamp]", "click[large]", f"click[{color}]", "click[buy now]")
    assert (end.info["task_score"], end.info["score/original"], end.info["score/strict"]) == (own, 1.0, 3 / 4)


def test_going_back_keeps_options_on_the_way_from_a_sub_page_only(session):
    way = ("search[lamp]", "click[b0lamp]", "click[large]")
    kept = play(session, *way, "click[features]", "click[< prev]", "click[buy now]")
    lost = play(session, *way, "click[< prev]", "click[b0lamp]", "click[buy now]")
    assert '{"size": "large"}' in kept.observation
    assert "options [SEP] {} [SEP]" in lost.observation


def test_a_second_choice_replaces_the_first(session):
    end = play(session, "search[lamp]", "click[b0lamp]", "click[red]", "click[black | white]", "click[buy now]")
    assert '{"color": "black | white"}' in end.observation


def test_of_two_options_with_one_value_the_last_is_chosen(files):
    files.products[0]["customization_options"]["Shade"] = [{"value": "red"}]
    session = WebshopEnvironment(load_stock(files.write()), tagger=("", fallback)).open(TASK)
    page = play(session, "search[lamp]", "click[b0lamp]")
    assert clicks(page).count("red") == 1
    session.step("click[red]")
    assert '{"shade": "red"}' in session.step("click[buy now]").observation


@pytest.mark.parametrize("action", [
    "", "buy", "click[]", "click[search]", "click[buy now]", "click[B0RUG]", "search", "search[]", "Click[b0lamp]",
    "click[b0lamp", "\nclick[b0lamp]", "[b0lamp]", "x" * 100_000, "[" * 100_000, "think[lamp] click[b0lamp]"])
def test_an_inadmissible_action_leaves_the_page_unchanged(session, action):
    page = play(session, "search[lamp]")
    assert session.step(action) == replace(page, unchanged=True)


def test_text_after_the_last_bracket_of_a_line_is_not_read(session):
    assert play(session, "search[LAMP] now\nplease").observation == play(session, "search[lamp]").observation
    assert parse_action("search[a[b]]") == ("search[a", "b]")


@pytest.mark.parametrize("query", ["<r>", "<q> table lamps", "<c> garden", "<a> cordless"])
def test_commands_of_the_original_are_words(session, query):
    outcome = play(session, f"search[{query}]")
    assert outcome.observation == play(session, f"search[{query.replace('<', '').replace('>', '')}]").observation


def test_a_search_works_from_any_page_and_forgets_options(session):
    page = play(session, "search[lamp]", "click[b0lamp]", "click[large]", "search[rug]")
    assert "B0RUG [SEP] Oskavi Area Rug [SEP] $100.0" in page.observation


def test_rich_text_marks_what_can_be_and_what_was_clicked(files):
    shop = WebshopEnvironment(load_stock(files.write()), WebshopSection(observation="text_rich"), tagger=("", fallback))
    session, wish = shop.open(TASK), shop.goal(TASK).instruction
    assert play(session).observation == f"WebShop\nInstruction:\n{wish}\n[button] Search [button_]\n"
    page = play(session, "search[brisko lamp]", "click[b0lamp]", "click[red]")
    assert page.observation == (
        f"You have clicked red.\nInstruction:\n{wish}\n[button] Back to Search [button_]\n[button] < Prev [button_]\n"
        "color\n  [clicked button] red [clicked button_]\n  [button] black | white [button_]\n"
        "size\n  [button] large [button_]\n"
        "Brisko Cordless Table Lamp\nPrice: $20.5\nRating: N.A.\n[button] Description [button_]\n"
        "[button] Features [button_]\n[button] Reviews [button_]\n[button] Buy Now [button_]\n")
    assert session.step("click[< prev]").observation.endswith(
        "Page 1 (Total results: 2)\n[button] Next > [button_]\n\n[clicked button] B0LAMP [clicked button_]\n"
        "Brisko Cordless Table Lamp\n$20.5\n\n[button] B0DESK [button_]\nQuillan Desk Lamp\n$10.0 to $20.0\n")


def test_reset_forgets_and_sessions_share_nothing(shop):
    one, other = shop.open(TASK), shop.open(TASK)
    start = one.reset()
    way = ["search[lamp]", "click[b0lamp]", "click[red]", "click[features]"]
    assert [one.step(action) for action in way] == [other.step(action) for action in way]
    assert one.reset() == start
    assert one.step("click[red]") == replace(start, unchanged=True)
