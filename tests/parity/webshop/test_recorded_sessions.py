"""Compares the score with nine recorded sessions of the original: the formula, the options, the price limits.

None of the bought products is in a file that can be had here, so attributes, queries, categories and titles cannot be
recomputed from them; their recorded parts are taken as they are.
"""

import json
import os
from pathlib import Path

import pytest

from envservice.webshop.goals import ShoppingGoal
from envservice.webshop.nouns import fallback
from envservice.webshop.products import Product
from envservice.webshop.session import Purchase, score

DATA = os.environ.get("WEBSHOP_DATA", "")
pytestmark = pytest.mark.skipif(
    not DATA or not (Path(DATA) / "all_trajs").is_dir(),
    reason="needs the recorded sessions in $WEBSHOP_DATA/all_trajs")


def ends():
    files = sorted((Path(DATA) / "all_trajs").glob("*.jsonl"))
    pages = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [page for page in pages if page["page"] == "done"]


def recomputed(end):
    """Our score of the purchase; of the product only what the record says is filled in."""
    goal, bought = end["goal"], end["content"]
    product = Product(
        asin=bought["asin"], title="", description="", bullets=(), category="", query="", product_category="",
        prices=(bought["price"],), price_tag="", options={}, attributes=())
    wish = ShoppingGoal(
        asin=goal["asin"], title=goal["name"], query=goal["query"], product_category=goal["product_category"],
        instruction=goal["instruction_text"], attributes=tuple(goal["attributes"]), options=tuple(goal["goal_options"]),
        price_upper=goal["price_upper"])
    return score(wish, Purchase(product=product, price=bought["price"], options=bought["options"]), fallback)


def test_nine_recorded_sessions_reached_their_end():
    assert len(ends()) == 9


def test_the_total_is_the_formula_of_its_parts():
    for end in ends():
        parts, ours = end["reward_info"], recomputed(end)
        options = (parts.get("r_option") or 0.0) * ours.w_option
        total = parts["r_type"] * (parts["r_att"] * ours.w_att + options + parts["r_price"] * ours.w_price)
        assert end["reward"] == pytest.approx(total, abs=1e-12)


def test_options_are_matched_alike():
    asked = [end for end in ends() if end["goal"]["goal_options"]]
    recorded = [(end["reward_info"]["r_option"], recomputed(end).r_option) for end in asked]
    assert len(recorded) == 6
    assert all(theirs == ours for theirs, ours in recorded)


def test_recorded_and_recomputed_prices_are_both_within_the_limit():
    assert [end["reward_info"]["r_price"] for end in ends()] == [True] * 9
    assert [recomputed(end).r_price for end in ends()] == [True] * 9
