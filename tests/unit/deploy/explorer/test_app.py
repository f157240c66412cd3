"""The pages over HTTP: each page answers, escapes the contents of files, and admits the right clients."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import cast

import pytest
from explorer_run import make_run
from fastapi.testclient import TestClient
from starlette.types import ASGIApp

from deploy.explorer.app import create_app, explorer_config
from deploy.explorer.drawings import evaluation_chart
from deploy.explorer.runs import open_runs
from deploy.report.figures import SMOOTHING
from learner.credit.registry import ESTIMATORS
from services.errors import UserError

GROUP = "step-00000001/train/00000100"
EPISODE = "step-00000001/0/train/00000100"
OWN = next(block for block in re.findall(r"^```python\n(.*?)^```", (
    Path(__file__).parents[4] / "docs/tasks/own-estimator.md").read_text(), re.MULTILINE | re.DOTALL)
    if "class Above" in block)
"""An estimator of the user's own, as the docs print it."""


@pytest.fixture(scope="module")
def client(run_folder, other_folder):
    return TestClient(create_app(open_runs([run_folder, other_folder]), None), base_url="http://localhost:8400")


@pytest.mark.parametrize("path", [
    "/", "/toy/groups", "/toy/groups?sort=spread&desc=1&outcome=trained&mixed=1", "/toy/groups?task=nothing-fits",
    "/toy/groups?first=&last=2&kind=a", "/toy/groups?page=99", "/toy/evaluations", "/toy/evaluations?sort=1&desc=1",
    "/toy/config",
    "/toy/evaluations?kind=a&sort=changes", f"/toy/group/{GROUP}", f"/toy/group/{GROUP}?k=1", f"/toy/episode/{EPISODE}",
    f"/toy/credit/{GROUP}", "/task?id=toy/train/a-100", "/api/state", "/static/explore.css", "/static/explore.js",
    f"/other/group/{GROUP}", f"/other/episode/{EPISODE}",
    "/toy/episode/step-00000000-step-000000-T1/0/eval/step-000000/1/00000"])
def test_a_page_answers(client, path):
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    assert "script-src 'self'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(("path", "said"), [
    ("/nope/groups", "shows no run nope"), ("/toy/group/step-00000001/train/9", "holds no group train/9"),
    ("/toy/group/../../etc/passwd/x", "no such page"), ("/toy/episode/step-00000001/9/train/00000100", "no episode 9"),
    ("/task?id=none", "played none"), ("/toy/lost/step-00000001/train/9", "holds no group train/9"),
    ("/nowhere", "no such page")])
def test_a_missing_page_is_answered_with_help(client, path, said):
    reply = client.get(path)
    assert reply.status_code == 404
    assert said in unescape(reply.text)
    assert "/toy/groups" in reply.text


def test_a_page_names_the_spread_of_returns_and_one_file_is_no_files(client, tmp_path):
    page = client.get(f"/toy/group/{GROUP}").text
    assert re.search(r"mean return [\d.]+, standard deviation [\d.]+ · mean steps", page)
    only = shutil.copytree(make_run(tmp_path / "made", steps=1, groups=1), tmp_path / "only")
    for part in (only / "episodes").glob("*-T1.parquet"):
        part.unlink()
    client = TestClient(create_app(open_runs([only]), None), base_url="http://localhost:8400")
    assert re.search(r"<dd>1 group, \d+ steps in 1 file</dd>", client.get("/").text)


def test_empty_texts_can_be_seen_and_one_is_not_several(tmp_path, monkeypatch):
    monkeypatch.setattr("explorer_run.ACTIONS", ("", "look", "go"))
    monkeypatch.setattr("explorer_run.ROOMS", ("", "You see a desk 1.", "Nothing happens.", "A hall."))
    client = TestClient(create_app(open_runs([make_run(tmp_path / "bare")]), None), base_url="http://localhost:8400")
    pages = [client.get(f"/bare/{path}").text for path in (
        f"group/{GROUP}", f"episode/{EPISODE}", "../task?id=toy/train/a-100")]
    assert [page for page in pages if re.search(r"<(a|code|li|bdi|summary)\b[^>]*>\s*</", page)] == []
    assert all("(empty)" in page for page in pages)
    assert [found for page in pages for found in re.findall(r"\b1 (?:actions|visits|states)\b", page)] == []


def test_a_step_that_is_alone_in_its_state_has_the_value_that_its_estimator_gave_it(client):
    """With gagpo_loo that is the value of the step before, and not the step's own return."""
    pages = [unescape(client.get(f"/other/episode/step-00000001/{k}/train/00000100").text) for k in range(4)]
    assert any("Alone in this state" in page for page in pages)
    assert not any("its value is its own return" in page for page in pages)


@pytest.mark.parametrize("name", ["mine:Above", *ESTIMATORS])
def test_the_pages_of_a_group_and_an_episode_are_shown_for_every_estimator(name, tmp_path, monkeypatch):
    """Each has other options, so no page may ask for an option that only some have."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "toy", steps=1, estimator=name)
    client = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400")
    for path in ("/", f"/toy/group/{GROUP}", f"/toy/episode/{EPISODE}", f"/toy/credit/{GROUP}", "/toy/lost"):
        assert client.get(path).status_code == 200, path


def test_before_its_first_step_every_page_says_what_will_be_there(tmp_path):
    """No step is trained and nothing is evaluated."""
    folder = make_run(tmp_path / "young", steps=1)
    for path in [*folder.glob("*.jsonl"), *(folder / "episodes").iterdir()]:
        path.unlink()
    client = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400")
    assert "curves appear after the first" in client.get("/").text
    assert "/lost" not in client.get("/").text
    assert "the first file appears after" in client.get("/young/groups").text
    assert "evaluation comes before the first learner step" in client.get("/young/evaluations").text
    assert "No episode of young was lost" in client.get("/young/lost").text


@pytest.mark.parametrize("path", ["/toy/groups?sort=nonsense", "/toy/groups?page=x", "/task"])
def test_a_query_that_means_nothing_is_refused(client, path):
    assert client.get(path).status_code == 422


def test_all_links_of_all_pages_lead_somewhere(client):
    """Two clicks deep, the pages of this small run are all of them."""
    seen, todo = set(), ["/"]
    while todo and len(seen) < 300:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        reply = client.get(path)
        assert reply.status_code == 200, path
        if "text/html" in reply.headers["content-type"]:
            base = path.partition("?")[0]
            for href in map(unescape, re.findall(r'<(?:a|link)\b[^>]*? href="([^"]*)"', reply.text)):
                link = (base + href if href.startswith("?") else href).partition("#")[0]
                if link.startswith("/"):
                    todo.append(link)
    assert any("/episode/" in path for path in seen)
    assert any(path.startswith("/other/credit/") for path in seen)


def test_the_first_page_says_how_thick_lines_are_smoothed(client):
    """They are those of the report, whose axes say it too."""
    assert f"thick ones are smoothed ({SMOOTHING})" in client.get("/").text


def test_evaluations_at_two_temperatures_are_two_lines():
    """A run that went on with another eval.temperature has no fall between them."""
    rows = [{"label": f"step-{step:06d}", "step": step, "split": "valid", "temperature": temperature,
             "success_rate": 0.5, "success_low": 0.4, "success_high": 0.6, "tasks": 48}
            for step, temperature in ((0, 0.4), (5, 0.4), (10, 1.0), (15, 1.0))]
    for names, runs, said in ((["a"], [rows], ["valid T=0.4, 48 games", "valid T=1, 48 games"]),
                              (["a", "b"], [rows, rows[2:]], [
                                  f"{name}, 48 games" for name in ("a valid T=0.4", "a valid T=1", "b valid T=1")])):
        chart = evaluation_chart(names, runs)
        assert chart is not None
        assert [line.name for line in chart.lines] == said
        assert [line.steps for line in chart.lines] == [[0, 5], [10, 15], [10, 15]][:len(said)]
        assert all(line.band for line in chart.lines)


def test_evaluations_show_their_intervals_without_a_mouse(client):
    """They were in tooltips alone, which phones, keyboards and paper do not show."""
    text = re.sub(r"<[^>]*>", " ", client.get("/toy/evaluations").text)
    assert re.search(r"success, all tasks\s+95% interval\s+50%\s+\[10%, 90%\]\s+50%\s+\[10%, 90%\]", text)


def test_config_and_log_are_a_page(tmp_path):
    """The newest line comes first, with its process, and a line that is cut short is left out."""
    folder = make_run(tmp_path / "toy", steps=1)
    line = {"process": "rollout-0", "event": "<started>", "level": "info", "time": "2026-01-02T03:04:05Z", "pid": 7}
    lines = [line, line | {"process": "learner-0", "level": "error", "event": "ended", "exception": "Traceback x"}]
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"process": "cut')
    client = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400")
    text = re.sub(r"<[^>]*>", "", client.get("/toy/config").text)
    assert text.index("03:04:05 error: ended  pid=7\nTraceback x") < text.index("03:04:05 &lt;started&gt;  pid=7")
    assert "The last 2 lines of log.jsonl" in text
    assert "estimator: gagpo" in text


def test_each_of_several_runs_has_its_colour_and_there_are_eight(tmp_path):
    folders = [make_run(tmp_path / f"{i}" / "toy", steps=1) for i in range(3)]
    page = TestClient(create_app(open_runs(folders), None), base_url="http://localhost:8400").get("/").text
    assert re.findall(r'class="run (r\d)"><b>(.*?)</b>', page) == [("r0", "toy"), ("r1", "toy-2"), ("r2", "toy-3")]
    with pytest.raises(UserError, match="9 runs are too many to see side by side; give at most 8"):
        open_runs([folders[0]] * 9)


def test_axes_of_shares_are_in_percent_and_names_in_words(client):
    page = client.get("/").text
    success, length = (page.partition(f"<figcaption>{title}</figcaption>")[2].partition("</figure>")[0]
                       for title in ("Success of training episodes", "Episode length, steps"))
    assert (" data-percent" in success, " data-percent" in length) == (True, False)
    assert re.findall(r'text-anchor="end">([^<]*%)</text>', success)
    assert "learner step</text>" in success
    assert "success_rate" not in page


@pytest.mark.parametrize("sort", ["\N{SUPERSCRIPT TWO}", "9" * 30, "-1"])
def test_an_order_of_no_column_is_passed_over(client, sort):
    assert client.get("/toy/evaluations", params={"sort": sort}).status_code == 200


def test_text_of_the_environment_is_never_run_as_code(client):
    text = "".join(client.get(f"/toy/{kind}").text for kind in (f"group/{GROUP}", f"episode/{EPISODE}"))
    text += "".join(client.get(f"/toy/episode/step-0000000{n}/{k}/train/00000{n}00").text
                    for n in (1, 2, 3) for k in range(4))
    assert "owned" in text
    assert "<script>document" not in text
    assert "<img src=x" not in text
    assert "<b>go</b>" not in text


def test_warnings_about_a_run_are_on_its_first_page(client):
    assert "⚠ the gradient of step 3 is not finite; check learner.lr" in client.get("/").text


@pytest.mark.attack
def test_without_a_token_only_this_machine_is_answered(run_folder):
    client = TestClient(cast("ASGIApp", explorer_config(open_runs([run_folder]), None).app),
                        base_url="http://localhost:8400")
    for host in ("localhost:8400", "127.0.0.1:1", "[::1]:8400", "localhost"):
        assert client.get("/", headers={"host": host}).status_code == 200
    assert client.get("/", headers={"host": "evil.example:8400"}).status_code == 421


@pytest.mark.attack
def test_a_token_is_asked_for_and_moves_into_a_cookie(run_folder):
    client = TestClient(create_app(open_runs([run_folder]), "s3cret"), base_url="http://host:8400")
    assert client.get("/").status_code == 401
    assert client.get("/static/explore.js").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/", headers={"authorization": "Bearer s3cret"}).status_code == 200
    reply = client.get("/toy/groups?token=s3cret&sort=spread", follow_redirects=False)
    assert reply.status_code == 303
    assert reply.headers["location"] == "/toy/groups?sort=spread"
    assert "HttpOnly" in reply.headers["set-cookie"]
    assert client.get("/toy/groups").status_code == 200
    reply = client.get("http://host:8400//evil.example/?token=s3cret", follow_redirects=False)
    assert reply.headers["location"].startswith("/evil")


def test_a_figure_without_any_value_is_not_drawn(tmp_path):
    """ALFWorld has no score: task_score is null in every row, as the run writes it."""
    folder = make_run(tmp_path / "toy", steps=2)
    rows = [json.loads(line) | {"task_score": None} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = TestClient(create_app(open_runs([folder]), None), base_url="http://localhost:8400").get("/").text
    assert "Success of training episodes" in page
    assert "Score of training episodes" not in page
