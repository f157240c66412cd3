"""The table of lost episodes, from an archive as the controller writes it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.cli import main
from deploy.report.lost_episodes import ALL, count_lost_episodes, grids
from deploy.report.page import write_report
from services.telemetry.metrics_file import append_row

TASK = "You see a desk 1, and a shelf 1.\n\nYour task is to: put a mug in desk."
EPISODES = [
    # task type, won, end, (observation, action, admissible, unchanged) of each turn, last observation
    ("pick", True, "won", [(TASK, "go to desk 1", True, False)], "You won."),
    ("pick", False, "turns", [(TASK, "go to desk 1", True, False), ("desk", "take mug 9 from desk 1", False, True),
                              ("desk", "take mug 9 from desk 1", False, True)], "Nothing happens."),
    ("two", False, "turns", [(TASK.replace("a mug", "two mug"), "go to shelf 1", True, False)],
     "You arrive at shelf 1. On the shelf 1, you see a mug 1."),
]


def row(label: str, *, step: int = 0, temperature: float = 1.0) -> dict[str, object]:
    return {"label": label, "step": step, "temperature": temperature, "split": "heldout", "tasks": 3,
            "success_rate": 0.3, "success_low": 0.1, "success_high": 0.6, "success_by_task": {}}


def archive(folder, name, *, empty: tuple[str, ...] = ()):
    lines = [
        {"group": f"eval/{number}", "k": 0, "step": t, "task_type": kind, "won": won, "end": end, "observation": text,
         "action": action, "admissible": admissible, "unchanged": unchanged,
         "final_observation": final if t == len(turns) - 1 else None}
        for number, (kind, won, end, turns, final) in enumerate(EPISODES)
        for t, (text, action, admissible, unchanged) in enumerate(turns)]
    table = pa.Table.from_pylist([line | dict.fromkeys(empty) for line in lines])
    pq.write_table(table, folder / "episodes" / f"{name}.parquet")


def test_shares_are_over_the_turns_of_lost_episodes(run):
    folder = run("one")
    archive(folder, "step-00000003-panel-trained-T0.4")
    rows = [row("panel-cold"), row("panel-trained", step=3, temperature=0.4)]
    found, warnings = count_lost_episodes(folder, rows, "alfworld")
    assert warnings == []
    assert found is not None
    assert list(found.by_type) == ["pick", "two", ALL]
    pick = found.by_type["pick"]
    assert (pick.episodes, pick.lost, pick.turns) == (2, 1, 3)
    assert (pick.inadmissible, pick.repeated, pick.unchanged) == (2, 1, 2)
    assert pick.stages == {"never found the object": 1}
    assert found.by_type["two"].stages == {"saw the object, never held it": 1}
    assert (found.by_type[ALL].lost, found.by_type[ALL].ends) == (2, {"out of turns": 2})
    assert grids(found)["Lost episodes"].rows[0] == ["pick", "1 of 2", "0%", "67%", "33%", "67%", "1 out of turns"]


def test_an_episode_that_repeats_one_turn_for_half_of_its_turns_is_in_a_loop(run, monkeypatch):
    """Two turns of four repeat the second turn, which is enough; two of five are not."""
    looking, again = (TASK, "go to desk 1", True, False), ("desk", "go to desk 1", False, True)
    for turns, loops in (([looking, again, again, again], 1), ([looking, looking, again, again, again], 0)):
        monkeypatch.setattr(f"{__name__}.EPISODES", [("pick", False, "turns", turns, "Nothing happens.")])
        folder = run(f"turns-{len(turns)}")
        archive(folder, "step-00000001-step-000001-T1")
        found, _ = count_lost_episodes(folder, [row("step-000001", step=1)], "alfworld")
        assert found is not None
        assert found.by_type["pick"].looped == loops


def test_the_last_evaluation_of_the_trained_policy_counts(run):
    folder = run("one")
    for name in ("step-00000002-step-000002-T1", "step-00000004-step-000004-T1"):
        archive(folder, name)
    rows = [row("step-000002", step=2), row("step-000004", step=4), row("panel-cold"), row("panel-more-cold-start")]
    found, _ = count_lost_episodes(folder, rows, "alfworld")
    assert found is not None
    assert found.label == "step-000004"
    assert count_lost_episodes(folder, [], "alfworld") == (None, [])
    assert count_lost_episodes(folder, [row("step-000009", step=9)], "alfworld") == (None, [])


def test_after_a_run_went_on_its_held_out_games_count(run):
    """Their row keeps the place that it had before, above the evaluations of the steps that followed."""
    folder = run("one")
    for name in ("step-00000004-step-000004-T1", "step-00000004-panel-trained-T0.4", "step-00000004-panel-trained-T1"):
        archive(folder, name)
    heldout = [row("panel-trained", step=4, temperature=t) for t in (1.0, 0.4)]
    rows = [row("step-000002", step=2), *heldout, row("step-000004", step=4)]
    found, _ = count_lost_episodes(folder, rows, "alfworld")
    assert found is not None
    assert (found.label, found.temperature) == ("panel-trained", 0.4)


def test_any_environment_tells_the_shares(run):
    """An environment that explains nothing, one that is not installed, and episodes without a type."""
    folder = run("one")
    archive(folder, "step-00000001-step-000001-T1", empty=("final_observation", "task_type"))
    for env in ("webshop", "nowhere:SPEC"):
        found, _ = count_lost_episodes(folder, [row("step-000001", step=1)], env)
        assert found is not None
        assert list(found.by_type) == ["unknown", ALL]
        assert list(grids(found)) == ["Lost episodes"]


def test_a_run_that_lost_nothing_has_no_table(run):
    folder = run("one")
    archive(folder, "step-00000001-step-000001-T1")
    whole = folder / "episodes" / "step-00000001-step-000001-T1.parquet"
    table = pq.read_table(whole)
    pq.write_table(table.filter(np.array(table.column("won").to_pylist())), whole)
    found, _ = count_lost_episodes(folder, [row("step-000001", step=1)], "alfworld")
    assert found is not None
    assert grids(found) == {}


def test_programs_get_the_counts_as_json(run, capsys):
    folder = run("one")
    archive(folder, "step-00000003-panel-trained-T0.4")
    append_row(folder / "evaluations.jsonl", row("panel-trained", step=3, temperature=0.4))
    assert main(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["lost"]
    assert (told["label"], told["temperature"]) == ("panel-trained", 0.4)
    assert told["by_type"]["pick"] == {
        "episodes": 2, "lost": 1, "turns": 3, "inadmissible": 2, "repeated": 1, "looped": 0,
        "unchanged": 2,
        "ends": {"out of turns": 1}, "stages": {"never found the object": 1},
        "mistakes": {"object is not there": 2}}


def test_the_report_shows_the_tables_and_names_a_damaged_file(run):
    folder = run("one")
    archive(folder, "step-00000003-panel-trained-T0.4")
    append_row(folder / "evaluations.jsonl", row("panel-trained", step=3, temperature=0.4))
    page, numbers = write_report([folder], folder)
    assert "<h2>Lost episodes</h2>" in page.read_text()
    assert "1 never found the object" in page.read_text()
    assert numbers["lost"]["by_type"]["all"]["lost"] == 2
    (folder / "episodes" / "step-00000003-panel-trained-T0.4.parquet").write_bytes(b"torn")
    _, numbers = write_report([folder], folder)
    assert numbers["lost"] is None
    assert any("step-00000003-panel-trained" in text for text in numbers["damaged"])
