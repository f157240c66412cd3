"""The protocol: digests, versions, purity, the splits of verl-agent."""

import random
import subprocess
import sys

import pytest

from envservice.webshop.catalogue import stock
from envservice.webshop.environment import WebshopEnvironment, open_webshop
from envservice.webshop.files import load_stock
from envservice.webshop.nouns import fallback
from services.config.env import WebshopSection
from services.errors import UserError


def shop_of(**settings) -> WebshopEnvironment:
    return WebshopEnvironment(stock(), WebshopSection(**settings), tagger=("endings-1", fallback))


def test_the_version_names_whatever_a_score_depends_on(shop, files):
    assert shop.name == "webshop"
    assert shop.version == f"1+official+endings-1+data-{load_stock(files.write()).digest[:8]}"
    other = shop_of(strict_options=True, verl_compat=True, observation="text_rich", show_attributes=True)
    assert other.name == "webshop-catalogue"
    assert other.version == "1+catalogue+endings-1+text_rich+attributes+strict-options+verl-compat"


def test_digests_follow_products_and_goals(files, shop, catalogue_shop):
    assert catalogue_shop.digest("test") == shop_of().digest("test") != catalogue_shop.digest("eval")
    before = shop.task_digest("webshop/train/0")
    files.products[2]["name"] = "Oskavi Round Rug"
    after = WebshopEnvironment(load_stock(files.write()), tagger=("endings-1", fallback))
    assert after.task_digest("webshop/train/0") != before
    assert after.digest("train") != shop.digest("train")
    assert after.version != shop.version


def test_nothing_depends_on_the_process():
    script = (
        "from envservice.webshop.environment import *; from lab.webshop_scores import *;"
        "from envservice.webshop.nouns import fallback;"
        "e = WebshopEnvironment(catalogue.stock(), tagger=('', fallback));"
        "print(e.digest('train'), measure(e, e.tasks('test')[:20], shopper))")
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120,
                           env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")]
    assert runs[0] == runs[1] != ""


def test_a_session_is_a_function_of_task_and_actions(catalogue_shop):
    """Random walks, played again beside each other, give the same outcomes."""
    rng = random.Random(3)
    tasks = rng.sample(catalogue_shop.tasks("train"), 5)
    walks = []
    for task in tasks:
        session = catalogue_shop.open(task)
        outcomes, actions = [session.reset()], []
        while not outcomes[-1].done and len(actions) < 30:
            actions.append(rng.choice([*outcomes[-1].admissible_actions, "search[steel lamp]", "nonsense"]))
            outcomes.append(session.step(actions[-1]))
        walks.append((actions, outcomes))
    sessions = [catalogue_shop.open(task) for task in tasks]
    again = [[session.reset()] for session in sessions]
    for step in range(30):
        for (actions, _), session, outcomes in zip(walks, sessions, again, strict=True):
            if step < len(actions):
                outcomes.append(session.step(actions[step]))
    assert again == [outcomes for _, outcomes in walks]


def test_task_types_are_the_shops_categories(catalogue_shop):
    assert {catalogue_shop.task_type(task) for task in catalogue_shop.tasks("test")} == {
        "garden", "beauty", "electronics", "fashion", "grocery"}


def test_verl_agents_splits_overlap_in_goals_though_not_in_tasks():
    shop = shop_of(verl_compat=True)
    train, held = shop.tasks("train"), shop.tasks("test")
    assert "webshop/train/15-500" in train
    assert "webshop/test/1064-0" in held
    assert not set(train) & set(held)
    asked = {shop.goal(f"webshop/train/0-{index}").instruction.partition(", and price")[0] for index in range(500, 900)}
    tested = {shop.goal(f"webshop/test/1064-{index}").instruction.partition(", and price")[0] for index in range(500)}
    assert asked & tested
    assert shop.digest("train") != shop_of().digest("train")


def test_one_index_means_another_goal_for_each_worker_seed():
    shop = shop_of(verl_compat=True)
    assert len({shop.goal(f"webshop/train/{seed}-500").instruction for seed in range(16)}) > 10
    with pytest.raises(KeyError):
        shop.open("webshop/train/500")


def test_our_catalogue_has_no_human_goals():
    with pytest.raises(UserError, match="no human goals"):
        open_webshop(None, WebshopSection(goals="human"))


def test_human_goals_can_be_played(files):
    shop = open_webshop(files.write(), WebshopSection(goals="human"))
    assert "+human" in shop.version
    session = shop.open("webshop/train/0")
    session.reset()
    for action in ("search[lamp]", "click[b0lamp]", "click[red]"):
        session.step(action)
    assert session.step("click[buy now]").won


def test_a_long_hostile_query_is_a_query(shop):
    session = shop.open("webshop/train/0")
    session.reset()
    for text in ("lamp " * 20_000, "\x00\ud800", "a" * 200_000, "[]" * 1000):
        assert not session.step(f"search[{text}]").done


def test_the_train_on_rest_goals_alone_are_held_out():
    """As verl-agent cuts them, in the order that every other split has; two halves of them share no goal."""
    cut, usual = shop_of(train_on_rest=True), shop_of()
    assert cut.splits() == ["train", "eval", "test", "first500"]
    numbers = {split: sorted(int(task.rpartition("/")[2]) for task in cut.tasks(split)) for split in cut.splits()}
    count = sum(len(usual.tasks(split)) for split in usual.splits())
    assert numbers["first500"] == list(range(500))
    assert (numbers["eval"], numbers["test"]) == (list(range(0, 500, 2)), list(range(1, 500, 2)))
    assert numbers["train"] == list(range(500, count))
    assert cut.goal("webshop/first500/7") == cut.goal("webshop/test/7") == usual.goal("webshop/test/7")
    assert cut.version.endswith("+train-on-rest")
    with pytest.raises(KeyError):
        usual.goal("webshop/first500/7")
    with pytest.raises(KeyError):
        cut.goal("webshop/eval/7")
    with pytest.raises(ValueError, match="two ways to cut the goals"):
        WebshopSection(train_on_rest=True, verl_compat=True)
