"""Goals and prices, frozen by one seed."""

import random

import pytest

from envservice.webshop.catalogue import stock
from envservice.webshop.files import load_stock
from envservice.webshop.goals import Goals


def test_every_combination_of_options_is_a_goal(shop):
    goals = [shop.goal(f"webshop/train/{n}") for n in range(2)]
    assert sorted(goal.instruction.partition(", and price")[0] for goal in goals) == [
        "Find me cordless table lamps with color: black | white, and size: large",
        "Find me cordless table lamps with color: red, and size: large",
    ]
    assert {goal.price_upper for goal in goals} <= {40.0, 50.0, 60.0}
    assert all(goal.instruction.endswith(f", and price lower than {goal.price_upper:.2f} dollars") for goal in goals)


def test_a_human_goal_lists_values(files):
    goal = Goals(load_stock(files.write(), goals="human"))[0]
    assert goal.options == ("red",)
    assert goal.instruction == f"i want a red lamp, and price lower than {goal.price_upper:.2f} dollars"


def test_nothing_above_the_highest_limit_is_limited(files):
    files.products[0]["pricing"] = "$985.00"
    goal = Goals(load_stock(files.write()))[0]
    assert goal.price_upper == 1_000_000
    assert "price lower" not in goal.instruction


def test_prices_and_order_are_drawn_as_the_original_draws_them(files):
    """Worked out beside the code: ranges first, then a limit per instruction, then the shuffle by a fresh generator."""
    goals = Goals(load_stock(files.write()), seed=7)
    rng = random.Random(7)
    assert goals.price(1) == rng.uniform(10.0, 20.0)
    assert goals[0].price_upper == max(rng.sample([30.0, 40.0, 50.0, 60.0], 2))
    order = ["red", "black | white"]
    random.Random(7).shuffle(order)
    assert [dict(goals[n].options)["color"] for n in range(2)] == order


def test_the_default_seed_is_the_originals_and_gives_the_same_goals_everywhere():
    goals = Goals(stock())
    assert goals.digest == Goals(stock(), seed=233).digest
    assert goals.digest != Goals(stock(), seed=234).digest


def test_no_goal_is_in_two_splits(catalogue_shop):
    asked = {split: {catalogue_shop.goal(task).instruction for task in catalogue_shop.tasks(split)}
             for split in catalogue_shop.splits()}
    sizes = {split: len(texts) for split, texts in asked.items()}
    assert sizes == {split: len(catalogue_shop.tasks(split)) for split in catalogue_shop.splits()}
    assert len(set.union(*asked.values())) == sum(sizes.values())


@pytest.mark.parametrize("task", [
    "webshop/test/500", "webshop/train/0", "webshop/test/-1", "webshop/test/00", "webshop/test/", "webshop/test/0/0",
    "webshop/test/233-0", "webshop/none/0", "alfworld/test/0", "", "webshop/test/\u0661", "webshop/test/" + "9" * 5000])
def test_a_task_that_is_not_listed_does_not_exist(catalogue_shop, task):
    with pytest.raises(KeyError):
        catalogue_shop.open(task)
