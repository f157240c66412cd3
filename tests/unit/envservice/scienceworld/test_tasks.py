import re

import pytest

from envservice.scienceworld.simulator import Simulator
from envservice.scienceworld.tasks import (
    COUNTS,
    HELD_OUT_TYPES,
    LEVELS,
    PARTS,
    SPLITS,
    TRAIN_TYPES,
    Level,
    place_of,
    sample,
    split_tasks,
    variations,
)
from services.config.env import ScienceworldSection
from services.errors import UserError


def test_the_sizes_are_the_published_ones():
    assert len(COUNTS) == 30
    assert [sum(counts[i] for counts in COUNTS.values()) for i in range(3)] == [3592, 1796, 1819]


def test_the_settings_name_the_same_tasks():
    assert ScienceworldSection().tasks == tuple(COUNTS)


def test_the_table_is_the_simulators(simulator: Simulator):
    """Names in its order, and which variations it counts to train, dev and test."""
    assert simulator.read_list("getTaskNames") == list(COUNTS)
    for name in COUNTS:
        simulator.load(name, 0, "easy")
        for part, asked in zip(PARTS, ("Train", "Dev", "Test"), strict=True):
            listed = simulator.ask(f"getVariations{asked}")
            written = str(simulator.wire.call("java.util.Objects", "toString", listed))
            assert [int(number) for number in re.findall(r"\d+", written)] == list(variations(name, part)), name


def test_levels_have_the_published_sizes():
    """L1 over the 19 types of training has 2242 tasks to train on, L2 549 to report on."""
    sizes = {split: len(list(split_tasks(split, COUNTS))) for split in SPLITS}
    assert (sizes["seen_train"], sizes["seen_test"], sizes["unseen_test"]) == (2242, 1135, 549)
    assert (len(TRAIN_TYPES), len(HELD_OUT_TYPES), TRAIN_TYPES & HELD_OUT_TYPES) == (19, 10, frozenset())
    assert set(COUNTS) - TRAIN_TYPES - HELD_OUT_TYPES == {"use-thermometer"}


@pytest.mark.parametrize("level", LEVELS)
def test_no_task_is_in_two_splits_of_a_level(level: Level):
    parts = [{place.id for place in split_tasks(split, COUNTS)} for split in LEVELS[level]]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_the_held_out_types_are_not_trained_on():
    train, choose, report = ({place.name for place in split_tasks(split, COUNTS)} for split in LEVELS["L2"])
    assert train == choose == TRAIN_TYPES
    assert report == HELD_OUT_TYPES


def test_a_task_id_leads_back_to_its_task():
    for split in SPLITS:
        for place in split_tasks(split, ["boil", "use-thermometer"]):
            assert place_of(place.id) == place


@pytest.mark.parametrize("task", [
    "scienceworld/test/boil/20", "scienceworld/test/boil/30", "scienceworld/train/boil/14", "scienceworld/dev/boil/013",
    "scienceworld/test/boil/-1", "scienceworld/test/boil/\u0662\u0661", "scienceworld/test/brew/21",
    "scienceworld/seen_test/boil/21",
    "scienceworld/test/boil", "alfworld/test/boil/21", "scienceworld/test/boil/21/", "",
])
def test_an_unknown_task_is_refused(task: str):
    with pytest.raises(KeyError):
        place_of(task)


def test_a_sample_is_spread_over_the_part():
    assert [place.variation for place in sample("boil", "train", 3)] == [0, 4, 8]
    assert [place.variation for place in sample("boil", "test", 1)] == [21]
    assert len(sample("identify-life-stages-2", "train", 99)) == 4


def test_a_split_without_tasks_says_which_key_to_widen(program: object):
    from envservice.scienceworld.environment import ScienceworldEnvironment

    environment = ScienceworldEnvironment(ScienceworldSection(tasks=("use-thermometer",), level="L2"))
    assert len(environment.tasks("train")) == 270
    with pytest.raises(UserError, match=r"widen env\.scienceworld\.tasks"):
        environment.tasks("unseen_test")
    with pytest.raises(UserError, match="no split 'valid'; choose one of train, dev, test"):
        environment.tasks("valid")
