"""The explorer over a damaged run: its pages show what can be read, and its first page names what cannot."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from explorer_run import make_run
from fastapi.testclient import TestClient

from deploy.explorer.app import create_app
from deploy.explorer.runs import open_runs

GROUP = "group/step-00000001/train/00000100"
EPISODE = "episode/step-00000001/0/train/00000100"


def page(folder: Path, path: str) -> str:
    """Returns the text of a page, which must answer."""
    reply = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400").get(path)
    assert reply.status_code == 200, f"{path}: {reply.text}"
    return unescape(reply.text)


def change_last_row(file: Path, **values: Any) -> None:
    *before, last = file.read_text().splitlines()
    file.write_text("".join(f"{line}\n" for line in [*before, json.dumps(json.loads(last) | values)]))


@pytest.mark.parametrize("value", ["much", 1e308, -1e308, 10 ** 400], ids=["text", "large", "small", "huge"])
@pytest.mark.parametrize("key", ["success_rate", "episode_length", "loss/entropy"])
def test_a_row_with_no_usable_number_is_left_out_and_named(tmp_path: Path, key: str, value: Any):
    folder = make_run(tmp_path / "toy")
    change_last_row(folder / "metrics.jsonl", **{key: value})
    home = page(folder, "/")
    assert "1 of 3 lines of metrics.jsonl are damaged and left out" in home
    assert "<dd>2 of 3" in home
    page(folder, "/toy/groups")


def test_an_evaluation_with_text_where_a_number_belongs_is_left_out_and_named(tmp_path: Path):
    folder = make_run(tmp_path / "toy")
    change_last_row(folder / "evaluations.jsonl", success_by_task={"toy/train/a-900": "won"})
    assert "1 of 2 lines of evaluations.jsonl are damaged" in page(folder, "/")
    assert "step 0" in page(folder, "/toy/evaluations")


def test_the_smallest_numbers_are_drawn(tmp_path: Path):
    folder = make_run(tmp_path / "toy", steps=1)
    change_last_row(folder / "metrics.jsonl", **{"grad_norm": 5e-324, "loss/entropy": 5e-324})
    assert "damaged" not in page(folder, "/")


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_folder_in_place_of_a_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str):
    folder = make_run(tmp_path / "toy")
    (folder / name).unlink()
    (folder / name).mkdir()
    assert f"{name} cannot be read: Is a directory" in page(folder, "/")
    for path in ("/api/state", "/toy/groups", "/toy/evaluations", f"/toy/{EPISODE}"):
        page(folder, path)


@pytest.mark.parametrize("section", [None, [3]])
def test_an_evaluation_section_without_keys_disturbs_no_page(tmp_path: Path, section: Any):
    folder = make_run(tmp_path / "toy")
    (folder / "evaluations.jsonl").unlink()
    (folder / "config.yaml").write_text(json.dumps({"name": "toy", "steps": 3, "eval": section}))
    assert "then one every 5" in page(folder, "/toy/evaluations")


@pytest.mark.parametrize("model", ["qwen", ["qwen"], {"path": 3}, {"path": ["qwen"]}])
def test_a_model_of_the_wrong_type_in_the_config_is_named_and_episodes_are_shown(tmp_path: Path, model: Any):
    folder = make_run(tmp_path / "toy")
    (folder / "config.yaml").write_text(json.dumps({"name": "toy", "steps": 3, "model": model}))
    assert "model in config.yaml" in page(folder, "/")
    page(folder, f"/toy/{EPISODE}")


def test_a_run_may_be_called_like_the_folder_of_the_style_sheet(tmp_path: Path):
    folder = make_run(tmp_path / "static")
    for path in ("/", "/static/groups", "/static/evaluations", f"/static/{EPISODE}", "/static/explore.css"):
        page(folder, path)


@pytest.mark.parametrize(("text", "said"), [
    ('{"learner": {"credit": {"estimator": "moved_away:Above"}}}', "the estimator moved_away:Above cannot be imported"),
    ('{"learner": {"credit": {"estimator": "gagpoo"}}}', "there is no credit estimator 'gagpoo'"),
    ('{"learner": {"credit": {"gamma": "much"}}}', "learner.credit.gamma cannot be 'much'"),
    ('{"learner": {"credit": {"lam": 2}}}', "learner.credit.lam"),
    ('{"learner": {"credit": {"lamm": 1}}}', "unknown key learner.credit.lamm"),
    ('{"learner": {"credit": null}}', "learner.credit is no section"),
    ('{"learner": {"credit": ["gagpo"]}}', "learner.credit is no section"),
    ('{"learner": "gagpo"}', "learner.credit is no section"),
    ('{"learner": ', "is not YAML"),
    ("gagpo", "holds no settings"),
])
def test_a_run_with_a_broken_config_says_what_is_wrong_where_and_all_is_shown_but_its_sums(
        tmp_path: Path, text: str, said: str):
    folder, other = make_run(tmp_path / "toy"), make_run(tmp_path / "other")
    (folder / "config.yaml").write_text(text)
    client = TestClient(create_app(open_runs([folder, other]), None), base_url="http://localhost:8400")
    for path in ("/", "/toy/groups", "/toy/evaluations", f"/toy/{GROUP}", f"/toy/{EPISODE}"):
        reply = client.get(path)
        assert reply.status_code == 200, f"{path}: {reply.text}"
        assert f"toy: {folder}/config.yaml" in unescape(reply.text)
        assert said in unescape(reply.text)
        assert "how its numbers come about" not in reply.text
    reply = client.get("/toy/credit/step-00000001/train/00000100")
    assert reply.status_code == 422
    assert said in unescape(reply.text)
    assert "<h1>other</h1>" in client.get("/").text
    assert "how its numbers come about" in client.get(f"/other/{EPISODE}").text


def test_a_config_that_changes_is_read_again(tmp_path: Path):
    """A run may go on with more steps while it is explored, and a mistake in the file may be corrected."""
    folder = make_run(tmp_path / "toy")
    sound = (folder / "config.yaml").read_text()
    client = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400")
    assert "<dd>3 of 3" in client.get("/").text
    for text, said in (("learner: {credit: {estimator: gagpoo}}", "gagpoo"),
                       (sound.replace("steps: 3", "steps: 60"), "<dd>3 of 60")):
        (folder / "config.yaml").write_text(text)
        assert said in client.get("/").text
