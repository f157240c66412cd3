"""A cold start that is interrupted and goes on from its newest state equals one that is not."""

import re
import time
from types import SimpleNamespace

import pytest
import torch
from learner_tiny import Interrupted, interrupt, make_config, weights
from test_rank_training import on_ranks, shown
from test_trainer import run_rank_group

from learner.cold_start import states
from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, Order
from learner.cold_start.sft_data import ROWS, save_rows
from learner.cold_start.states import States, digest_of, state_steps
from services.config.sections import SftSection

SFT = SftSection(batch_rows=4, lr=1e-3)
BUDGET = Budget(updates=9)


@pytest.fixture(autouse=True)
def _a_state_after_each_update(monkeypatch):
    monkeypatch.setattr(states, "LEAST_S", 0.0)
    monkeypatch.setattr(states, "COST", float("inf"))


@pytest.fixture
def live(model_path, rank_group, tmp_path):
    """Provides live(...), one life of a cold start. Returns its weights, its progress and what its states say."""
    def one(*, ends=None, budget=BUDGET, sft=SFT, keeps=True, seed=3, **learner):
        save_rows(shown(), tmp_path / ROWS)
        made = imitator(make_config(**learner).model_copy(update={"sft": sft}), model_path, rank_group)
        found = States(made, Order(model=model_path, out=tmp_path, work=tmp_path, budget=budget, seed=seed))
        progress, told = None, []

        def report(now):
            told.append(now)
            interrupt(ends, now)

        try:
            progress = train_on_ranks(made, shown(), sft, budget=budget, seed=seed, report=report,
                                      states=found if keeps else None)
        except Interrupted:
            assert ends
        return SimpleNamespace(weights=weights(made), progress=progress, first=told[0], facts=found.facts())
    return one


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("sft", "learner"), [
    (SFT, {}), (SftSection(batch_rows=4, lr=1e-3, prompt_loss=0.0), {}), (SFT, {"lora": {"rank": 4, "alpha": 8.0}})])
def test_two_interruptions_change_no_bit(live, sft, learner):
    whole = live(sft=sft, keeps=False, **learner)
    assert live(sft=sft, ends=2, **learner).facts["kept"] == 1
    second = live(sft=sft, ends=7, **learner)
    assert (second.first.updates, second.facts["kept"]) == (2, 6)
    assert second.facts["begun"][1] == ("the cold start continues after update 1",)
    last = live(sft=sft, **learner)
    assert last.first.updates == 7
    assert same(last.weights, whole.weights)
    for name in ("updates", "rows", "epochs", "loss_response", "loss_prompt"):
        assert getattr(last.progress, name) == getattr(whole.progress, name)


def test_a_disk_without_room_ends_no_cold_start(live, monkeypatch, tmp_path):
    """A state is a precaution: it goes on without one, and says so once."""
    whole = live(keeps=False)
    monkeypatch.setattr(states.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    made = live()
    assert same(made.weights, whole.weights)
    assert state_steps(tmp_path) == []
    (line,) = made.facts["begun"][1]
    assert re.search(r"has 0\.0 GiB free, and a state .* may take .* continues without a new state", line)


def test_two_ranks_train_as_one_and_go_on_without_a_changed_bit_and_one_goes_on_from_their_state(
        model_path, rank_group, tmp_path):
    """Batches of three rows and of one: a rank without a row computes a filler."""
    rows, sft = shown(count=7), SftSection(batch_rows=3, lr=1e-3, prompt_loss=0.5)
    save_rows(rows, tmp_path / ROWS)
    (tmp_path / "sft.json").write_text(sft.model_dump_json())
    run_rank_group(model_path, tmp_path, "imitates", "goes-on", world=2, nodes=1)
    whole, found = (torch.load(tmp_path / name / "made.pt") for name in ("imitates", "goes-on"))
    assert same(whole["weights"], found["weights"])
    assert found["norms"] == whole["norms"][3:]  # from the state of update 3 on
    assert state_steps(tmp_path) == [3, 4]
    expected, _, slack = on_ranks(model_path, rank_group, rows, sft)
    slack.check(expected, whole["weights"])
    assert whole["norms"] == pytest.approx(slack.norms, rel=1e-4)
    made = imitator(make_config(betas=(0.9, 0.99), weight_decay=0.01, grad_clip=1e9).model_copy(update={"sft": sft}),
                    model_path, rank_group)
    order = Order(model=model_path, out=tmp_path, work=tmp_path, budget=Budget(updates=5), seed=3)
    told = []
    train_on_ranks(made, rows, sft, budget=order.budget, seed=3, report=told.append, states=States(made, order))
    assert [one.updates for one in told] == [5]
    slack.check(expected, weights(made))


def test_minutes_count_the_training_before_a_death_alone(live):
    budget = Budget(minutes=10)
    before = live(ends=3, budget=budget)
    after = live(ends=3, budget=budget)
    assert 0 < before.first.seconds < after.first.seconds < 60
    assert after.first.updates == 3


def test_minutes_do_not_count_the_writing_of_states(live, monkeypatch):
    commit, began = States._commit, time.monotonic()
    monkeypatch.setattr(States, "_commit", lambda *arguments: (time.sleep(0.1), commit(*arguments)))
    seconds = live().progress.seconds
    assert seconds < time.monotonic() - began - 8 * 0.1


def cut(file):
    with file.open("r+b") as shard:
        shard.truncate(file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [
    lambda folder: cut(next(folder.glob("*.safetensors"))), lambda folder: cut(folder / "meta.json"),
    lambda folder: (folder / "meta.json").unlink()])
def test_the_state_before_a_damaged_one_is_used_else_the_beginning(live, tmp_path, damage):
    whole = live(keeps=False)
    live(ends=5)
    assert state_steps(tmp_path) == [3, 4]
    damage(tmp_path / "state-00000004")
    found = live(ends=4)
    warning, goes_on = found.facts["begun"][1]
    assert warning.startswith(f"warning: the state in {tmp_path / 'state-00000004'} is damaged and is not used: ")
    assert goes_on == "the cold start continues after update 3"
    damage(tmp_path / "state-00000003")
    last = live()
    assert (last.first.updates, last.facts["begun"][1][-1]) == (1, "the cold start begins from the start")
    assert same(last.weights, whole.weights)
    assert state_steps(tmp_path) == [7, 8]


def test_a_state_of_another_order_is_not_used(live, tmp_path):
    live(ends=3)
    other = live(ends=2, seed=4)
    assert other.first.updates == 1
    assert "is of another model, other rows or other settings" in other.facts["begun"][1][0]
    assert state_steps(tmp_path) == [1]  # the first state of the new order took the place of the others


def test_an_order_has_its_own_digest(model_path, tmp_path):
    save_rows(shown(), tmp_path / ROWS)
    order = {"model": model_path, "out": tmp_path, "work": tmp_path, "budget": BUDGET, "seed": 3}

    def digest(sft=SFT, changes=order, **learner):
        return digest_of(make_config(**learner).model_copy(update={"sft": sft}), Order(**changes))

    first = digest()
    others = [digest(SFT.model_copy(update={"lr": 2e-3})), digest(SFT.model_copy(update={"batch_rows": 5})),
              digest(SFT.model_copy(update={"prompt_loss": 0.1})), digest(changes=order | {"seed": 4}),
              *(digest(changes=order | {"budget": budget}) for budget in (Budget(updates=6), Budget(minutes=5))),
              digest(betas=(0.9, 0.95)), digest(weight_decay=0.2), digest(grad_clip=3.0),
              digest(lora={"rank": 4, "alpha": 8.0})]
    assert len({first, *others}) == 1 + len(others)
    save_rows(shown(), tmp_path / ROWS)
    assert digest(token_budget=64, ranks=2, step_attempts=9, threads=2, offload=True) == first
    assert digest(SFT.model_copy(update={"noise": 0.5})) == first  # it counts through the rows
    save_rows(shown(seed=1), tmp_path / ROWS)
    assert digest() != first
