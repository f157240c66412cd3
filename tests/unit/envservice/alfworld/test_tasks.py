"""Which games are listed and in which split: on a small folder in the official layout, and on generated games."""

import errno
import json
import threading
import tomllib
from pathlib import Path

import pytest

from envservice.alfworld.environment import AlfworldEnvironment, open_environment
from envservice.alfworld.generator import generate
from envservice.alfworld.tasks import FETCH, GeneratedGames, OfficialGames, is_held_out, task_type
from services.config.tree import EnvSection
from services.errors import EnvFault, UserError

PICK = "pick_and_place_simple-Mug-None-Desk-{}"


def put(root, split, folder, trial="trial_T1", index=0, **changes):
    path = root / "json_2.1.1" / split / folder / trial
    path.mkdir(parents=True)
    (path / "game.tw-pddl").write_text(json.dumps(generate("train", index) | changes))
    return f"alfworld/{split}/{folder}/{trial}"


@pytest.fixture
def root(tmp_path):
    for scene in range(40):
        put(tmp_path, "train", PICK.format(scene), index=6 * scene)
    put(tmp_path, "train", PICK.format(3), trial="trial_T2")
    put(tmp_path, "train", "look_at_obj_in_light-Mug-None-DeskLamp-301", index=1)
    put(tmp_path, "train", "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1")
    put(tmp_path, "train", "pick_cool_then_place_in_recep-AppleSliced-None-Desk-1")
    put(tmp_path, "train", "pick_two_obj_and_place-Mug-None-Desk-1", solvable=False)
    (tmp_path / "json_2.1.1/train/pick_two_obj_and_place-Mug-None-Desk-1/trial_no_game").mkdir()
    put(tmp_path, "valid_seen", PICK.format(3), trial="trial_T9", index=6)
    return tmp_path


def test_only_games_that_can_be_played_and_solved_are_listed(root):
    games = OfficialGames(root)
    assert games.splits() == ["train", "valid_seen", "train_kept", "heldout"]
    train = games.tasks("train")
    assert len(train) == 42
    assert list(train) == sorted(train)
    assert {task_type(task) for task in train} == {"pick", "look"}
    assert games.tasks("valid_seen") == (f"alfworld/valid_seen/{PICK.format(3)}/trial_T9",)


def test_two_threads_that_list_two_splits_at_once_lose_no_game_of_either(root):
    """The second thread lists its split while the first one takes up the games of its own."""
    class Listed(tuple):
        def __iter__(self):
            assert "valid_seen" not in games._lists, "a thread that finds the list opens its games"
            other = threading.Thread(target=games.tasks, args=("train",))
            other.start()
            other.join()
            return super().__iter__()

    class Games(OfficialGames):
        def _list(self, split):
            return Listed(super()._list(split)) if split == "valid_seen" else super()._list(split)

    games = Games(root)
    for split in ("valid_seen", "train"):
        assert games.content(games.tasks(split)[0])


def test_held_out_games_share_no_folder_with_kept_ones_and_keep_their_official_split_in_the_id(root):
    games = OfficialGames(root)
    kept, heldout = games.tasks("train_kept"), games.tasks("heldout")
    assert sorted(kept + heldout) == list(games.tasks("train"))
    assert not {task.split("/")[2] for task in kept} & {task.split("/")[2] for task in heldout}
    assert all(is_held_out(task.split("/")[2]) for task in heldout)
    assert 3 <= len(heldout) <= 20


def test_task_types_narrow_lists_and_digests_but_open_anything(root):
    everything = AlfworldEnvironment(OfficialGames(root), task_types=("pick", "look"))
    look = AlfworldEnvironment(OfficialGames(root), task_types=("look",))
    assert look.tasks("train") == ["alfworld/train/look_at_obj_in_light-Mug-None-DeskLamp-301/trial_T1"]
    assert look.digest("train") != everything.digest("train")
    assert "Your task is to" in look.open(everything.tasks("valid_seen")[0]).reset().observation
    with pytest.raises(UserError, match="no game of the types look"):
        look.tasks("valid_seen")


def test_a_digest_follows_contents_and_not_the_place(root, tmp_path_factory):
    before = AlfworldEnvironment(OfficialGames(root)).digest("valid_seen")
    moved = tmp_path_factory.mktemp("elsewhere") / "data"
    root.rename(moved)
    assert AlfworldEnvironment(OfficialGames(moved)).digest("valid_seen") == before
    file = next((moved / "json_2.1.1/valid_seen").glob("*/*/game.tw-pddl"))
    file.write_text(json.dumps(generate("train", 12)))
    assert AlfworldEnvironment(OfficialGames(moved)).digest("valid_seen") != before


def test_digesting_generated_games_makes_none_of_them(monkeypatch):
    """There are thousands, and a server is asked for all its digests at once."""
    digests = [AlfworldEnvironment(GeneratedGames()).digest(split) for split in GeneratedGames().splits()]
    assert len(set(digests)) == 3
    monkeypatch.setattr("envservice.alfworld.generator.generate", None)
    again = AlfworldEnvironment(GeneratedGames())
    assert [again.digest(split) for split in again.splits()] == digests
    assert AlfworldEnvironment(GeneratedGames(), task_types=("look",)).digest("valid") not in digests
    monkeypatch.setattr("envservice.alfworld.generator.made_by", lambda: b"another generator")
    assert not set(digests) & {AlfworldEnvironment(GeneratedGames()).digest(split) for split in again.splits()}


@pytest.mark.parametrize(
    "task",
    ["", "x", "alfworld", "alfworld/train", "alfworld/train/../../../secret", "alfworld/nowhere/a/b", "webshop/train/1",
     "alfworld/train_kept/a/b", "alfworld-gen/train/pick-9999", "alfworld-gen/train/pick-0001", "alfworld/train//x"],
)  # fmt: skip
def test_an_unknown_task_is_a_key_error(root, task):
    for games in (OfficialGames(root), GeneratedGames()):
        with pytest.raises(KeyError):
            AlfworldEnvironment(games).open(task)


def test_the_command_that_fetches_games_installs_the_version_that_is_tested():
    """Without the package's own dependencies, which games of our engine do not need."""
    root = Path(__file__).parents[4]
    pinned = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["alfworld"][0]
    assert f"`pip install --no-deps {pinned} && alfworld-download`" == FETCH
    for page in ("docs/tasks/set-up.md", "docs/operate/messages.md"):
        assert f"pip install --no-deps {pinned}" in (root / page).read_text()


def test_missing_and_broken_data_are_one_line_for_the_user(root, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UserError, match=r"there are no ALFWorld games in .*; run `pip install"):
        OfficialGames(empty)
    games = OfficialGames(root)
    with pytest.raises(UserError, match="split valid_unseen is missing"):
        games.tasks("valid_unseen")
    with pytest.raises(UserError, match="no split 'test'; choose one of"):
        games.tasks("test")
    (root / "json_2.1.1/valid_unseen" / PICK.format(1)).mkdir(parents=True)
    with pytest.raises(UserError, match="valid_unseen is empty"):
        games.tasks("valid_unseen")
    file = next((root / "json_2.1.1/train").glob("*/*/game.tw-pddl"))
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(UserError, match=r"game\.tw-pddl is broken: .*; delete it or download it again") as error:
        OfficialGames(root).tasks("train")
    assert "\n" not in str(error.value)


def test_a_folder_of_games_that_cannot_be_read_is_one_line_for_the_user(root, monkeypatch):
    def scandir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    games = OfficialGames(root)
    monkeypatch.setattr("envservice.alfworld.tasks.os.scandir", scandir)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied: .*/train\); make them readable"):
        games.tasks("train")


def test_a_game_that_breaks_after_it_was_listed_is_a_fault_of_the_environment(root):
    environment = AlfworldEnvironment(OfficialGames(root))
    task = environment.tasks("valid_seen")[0]
    file = next((root / "json_2.1.1/valid_seen").glob("*/*/game.tw-pddl"))
    file.write_text("{}")
    with pytest.raises(EnvFault, match="has no key 'pddl_domain'"):
        environment.open(task)
    file.unlink()
    with pytest.raises(EnvFault, match="cannot read"):
        environment.open(task)


def test_generated_games_are_the_default_and_are_named_so(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    environment = open_environment(EnvSection())
    assert environment.name == "alfworld-gen"
    train, validation, heldout = map(environment.tasks, environment.training_splits())
    assert not set(train) & set(validation) | set(train) & set(heldout) | set(validation) & set(heldout)
    assert sum(task_type(task) in ("pick", "look") for task in heldout) >= 250
    assert all(task.startswith("alfworld-gen/") for task in train)
    with pytest.raises(UserError, match="no split 'valid_seen'"):
        environment.tasks("valid_seen")


def test_the_data_folder_comes_from_the_config_then_from_the_variable(root, monkeypatch, tmp_path):
    monkeypatch.setenv("ALFWORLD_DATA", str(root))
    assert open_environment(EnvSection()).name == "alfworld"
    with pytest.raises(UserError, match="no ALFWorld games in"):
        open_environment(EnvSection(data=tmp_path / "nowhere"))
