"""The explorer in a real browser: Debian's chromium without a window, driven through chromedriver.

Over two made runs, for what they hold that a calm one does not, and over walk/: a cold start, an evaluation and a step
of a run that `gagpo train --config walk/config.yaml` recorded, with its tokenizer.
"""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.cli import main

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt-get install chromium chromium-driver")
MAKER = Path(__file__).parents[3] / "unit/deploy/explorer/explorer_run.py"
WIDER = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("* { letter-spacing: .3em !important; font-family: monospace !important }");
document.adoptedStyleSheets = [sheet];
for (const folded of document.querySelectorAll("details")) folded.open = true;
return [getComputedStyle(document.querySelector("main")).letterSpacing, document.documentElement.scrollWidth]"""
"""Every font is another one elsewhere: all text half as wide again, and everything folded out."""
EPISODE = "/toy/episode/step-00000001/0/train/00000100"
WALKED = "/walk/episode/step-00000001/0/train/00000004"


def make_run(folder, **options):
    spec = importlib.util.spec_from_file_location("explorer_run", MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_run(folder, **options)


@contextmanager
def explored(*runs):
    """Where the command itself shows them."""
    process = subprocess.Popen([sys.executable, "-m", "deploy.cli", "explore", *map(str, runs), "--port", "0"],
                               text=True, stdout=subprocess.PIPE)
    try:
        said = iter(process.stdout.readline, "")
        yield next(found[1] for line in said if (found := re.search(r"(http://\S+?)/?$", line.strip())))
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    with explored(make_run(folder / "toy"), make_run(folder / "other", steps=2, estimator="gagpo_loo")) as found:
        yield found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A copy, as the explorer keeps its indexes in the run's folder."""
    folder = shutil.copytree(Path(__file__).parent / "walk", tmp_path_factory.mktemp("recorded") / "walk")
    with explored(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(30)
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def press(browser, keys):
    browser.find_element(By.TAG_NAME, "body").send_keys(keys)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("path", [
    "/", "/toy/groups", "/toy/evaluations", "/toy/group/step-00000001/train/00000100?k=0", EPISODE,
    "/task?id=toy/train/a-100", "/nowhere"])
def test_a_page_loads_without_a_complaint_and_without_scrolling_sideways(browser, address, path, width):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600})
    complaints(browser)
    browser.get(address + path)
    said = [text for text in complaints(browser) if not (path == "/nowhere" and "404" in text)]
    assert said == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    spacing, widened = browser.execute_script(WIDER)
    assert spacing != "normal"
    assert widened <= width
    assert "owned" not in browser.title
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_from_the_curves_to_the_step_that_lost_an_episode(browser, address):
    """As someone new does it: groups whose returns differ, the widest first, a lost episode, its verdict."""
    browser.get(address)
    browser.find_element(By.LINK_TEXT, "widest spread").click()
    spreads = [float(row.find_elements(By.TAG_NAME, "td")[5].text)
               for row in browser.find_elements(By.CSS_SELECTOR, "tr[data-row]")]
    assert spreads == sorted(spreads, reverse=True)
    browser.find_element(By.CSS_SELECTOR, "tr[data-row] .task a").click()
    lost = next(row for row in browser.find_elements(By.CSS_SELECTOR, ".episodes tr[data-row]")
                if "out of turns" in row.text)
    lost.find_element(By.CSS_SELECTOR, "td a").click()
    verdict = browser.find_element(By.CSS_SELECTOR, ".verdict").text
    step = re.search(r"Where it was lost: step (\d+)", verdict)[1]
    worst = browser.find_element(By.CSS_SELECTOR, ".step.worst")
    assert worst.get_attribute("id") == f"step-{step}"
    deltas = [float(cell.text.replace("−", "-")) for cell in browser.find_elements(By.CSS_SELECTOR, "[data-name=δ]")]
    own = float(worst.find_element(By.CSS_SELECTOR, "[data-name=δ]").text.replace("−", "-"))
    assert own == min(deltas[:-1]), "the last step of an episode cut off chose nothing"


def test_one_click_explains_a_failed_episode_by_the_numbers_of_the_step_that_lost_it(browser, address):
    browser.get(address)
    browser.find_element(By.LINK_TEXT, "a failed episode, explained").click()
    until(lambda: "/toy/episode/" in browser.current_url)
    assert "out of turns" in browser.find_element(By.TAG_NAME, "h1").text
    assert "δ = −" in browser.find_element(By.CSS_SELECTOR, ".verdict").text
    worst = browser.find_element(By.CSS_SELECTOR, ".step.worst")
    said = {line.text.split(" ")[0]: line.text for line in worst.find_elements(By.CSS_SELECTOR, ".sums[open] code")}
    assert {name: line.split(" = ")[-1] for name, line in said.items()} == {
        name: worst.find_element(By.CSS_SELECTOR, f"[data-name={name}]").text for name in ("V̄", "δ", "Â", "A")}
    key = browser.find_element(By.CSS_SELECTOR, "details.key")
    key.find_element(By.TAG_NAME, "summary").click()
    assert {"R̂", "V̄", "δ", "Â", "A"} <= {term.text for term in key.find_elements(By.TAG_NAME, "dt")}


def test_a_group_leads_to_the_episode_of_it_that_failed(browser, address):
    browser.get(f"{address}/toy/groups?outcome=trained&mixed=1")
    row = browser.find_element(By.CSS_SELECTOR, "tr[data-row]")
    group = row.find_element(By.CSS_SELECTOR, ".task a").text
    row.find_element(By.CSS_SELECTOR, "a.lost").click()
    until(lambda: "/toy/episode/" in browser.current_url)
    assert browser.current_url.endswith(group)
    assert browser.find_element(By.CSS_SELECTOR, "h1 .end").get_attribute("class") == "end lost"


def test_the_ends_of_a_state_graph_lie_beside_each_other(browser, address):
    browser.get(f"{address}/toy/group/step-00000001/train/00000100")
    left, right = sorted((box.rect for box in browser.find_elements(By.CSS_SELECTOR, ".endnode rect")),
                         key=lambda box: box["x"])
    assert left["x"] + left["width"] <= right["x"]


def test_filters_narrow_the_list_and_the_address_holds_them(browser, address):
    browser.get(f"{address}/toy/groups")
    browser.find_element(By.NAME, "task").send_keys("a-30")
    browser.find_element(By.CSS_SELECTOR, ".filters button").click()
    until(lambda: "task=a-30" in browser.current_url)
    assert [row.text.split()[1] for row in browser.find_elements(By.CSS_SELECTOR, "tr[data-row]")] == ["train/00000300"]


def test_the_keys_move_through_steps_and_pages(browser, address):
    browser.get(address + EPISODE)
    press(browser, "jj")
    until(lambda: browser.current_url.endswith("#step-1"))
    press(browser, "k")
    until(lambda: browser.current_url.endswith("#step-0"))
    press(browser, "n")
    until(lambda: "/step-00000001/1/" in browser.current_url)
    press(browser, "?")
    until(lambda: browser.find_element(By.ID, "keys").is_displayed())
    press(browser, Keys.ESCAPE)
    press(browser, "g")
    until(lambda: browser.current_url.endswith("/toy/groups"))
    press(browser, "j" + Keys.ENTER)
    until(lambda: "/toy/group/" in browser.current_url)


def test_the_list_of_keys_names_every_key_and_no_other(browser, address):
    browser.get(address + EPISODE)
    press(browser, "?")
    said = until(lambda: [term.text for term in browser.find_elements(By.CSS_SELECTOR, "#keys dt") if term.text])
    assert said == ["j k", "Enter", "o", "n p", "u", "w", "g e h", "?"]
    assert "prompt" in browser.find_element(By.XPATH, "//dt[.='o']/following-sibling::dd").text
    assert "page" in browser.find_element(By.XPATH, "//dt[.='Enter']/following-sibling::dd").text


@pytest.mark.parametrize(("start", "key", "end"), [
    (WALKED.replace("/0/", "/1/"), "p", WALKED), (WALKED, "n", WALKED.replace("/0/", "/1/")),
    (WALKED, "u", "/walk/group/step-00000001/train/00000004?k=0"), (WALKED, "g", "/walk/groups"),
    (WALKED, "e", "/walk/evaluations"), (WALKED, "h", "/")])
def test_a_key_leads_to_its_page(browser, recorded, start, key, end):
    browser.get(recorded + start)
    press(browser, key)
    until(lambda: browser.current_url == recorded + end)


def test_w_selects_the_step_that_lost_the_most(browser, recorded):
    browser.get(f"{recorded}/walk/lost/step-00000001/train/00000004")
    worst = browser.find_element(By.CSS_SELECTOR, ".step.worst")
    press(browser, "w")
    until(lambda: browser.current_url.endswith("#" + worst.get_attribute("id")))
    until(lambda: "at" in worst.get_attribute("class").split())


def test_enter_stays_on_an_episode_as_its_rows_stand_for_no_page(browser, recorded):
    browser.get(recorded + WALKED)
    assert browser.find_elements(By.CSS_SELECTOR, "#step-0 td a"), "links to other episodes that were in this state"
    press(browser, "j" + Keys.ENTER + "o")
    until(lambda: browser.find_element(By.CSS_SELECTOR, "#step-0 details.prompt").get_attribute("open"))
    assert browser.current_url == f"{recorded}{WALKED}#step-0"


def test_a_deep_link_opens_at_its_step(browser, address):
    browser.get(f"{address}{EPISODE}#step-1")
    assert "at" in browser.find_element(By.ID, "step-1").get_attribute("class").split()


def test_a_prompt_is_folded_until_a_click_or_a_key_and_is_the_text_that_the_policy_read(browser, recorded):
    browser.get(f"{recorded}{WALKED}#step-1")
    fold = browser.find_element(By.CSS_SELECTOR, "#step-1 details.prompt")
    text = fold.find_element(By.TAG_NAME, "pre")
    assert not text.is_displayed()
    fold.find_element(By.TAG_NAME, "summary").click()
    until(text.is_displayed)
    assert text.text.splitlines()[:3] == [
        "Task: examine the alarmclock with the desklamp", "Done: go to sidetable 1",
        "Now: You arrive at sidetable 1. On the sidetable 1, you see a cd 1."]
    for shown in (False, True):
        press(browser, "o")
        until(lambda shown=shown: text.is_displayed() == shown)


def test_the_tokens_of_an_answer_are_text_each_with_its_logprob_and_ratio(browser, recorded):
    browser.get(recorded + WALKED)
    tokens = browser.find_elements(By.CSS_SELECTOR, "#step-0 .answer span")
    assert [token.get_attribute("textContent") for token in tokens] == [
        "<think>find", " alarmclock", "</think><action>go to", " sidetable", " 1", "</action>"]
    for token in tokens:
        logprob, ratio = re.fullmatch(r"logprob −?(\d\.\d{4}), learner/sampler (\d\.\d{4})",
                                      token.get_attribute("title")).groups()
        assert float(logprob) >= 0
        assert float(ratio) == pytest.approx(1, abs=0.05)


def test_the_numbers_of_a_recorded_episode_are_those_of_gagpo_credit(browser, recorded, tmp_path, capsys, monkeypatch):
    """By the command and the file that its page gives, over every step of one won and one lost episode."""
    for k in (0, 2):
        browser.get(recorded + WALKED.replace("/0/", f"/{k}/"))
        if not k:
            note = browser.find_element(By.PARTIAL_LINK_TEXT, "the group as JSON")
            words = shlex.split(note.find_element(By.XPATH, "following-sibling::code").text)
            with urllib.request.urlopen(note.get_attribute("href"), timeout=20) as reply:
                group = json.load(reply)
            (tmp_path / words[2]).write_text(json.dumps(group))
            monkeypatch.chdir(tmp_path)
            assert main([*words[1:-1], "--json"]) == 0
            said = json.loads(capsys.readouterr().out)
        rows = browser.execute_script("""return [...document.querySelectorAll("[data-row]")].map((row) =>
            [...row.querySelectorAll("[data-name]")].map((cell) => cell.textContent))""")
        shown = [[float(cell.replace("−", "-")) for cell in row] for row in rows]
        expected = [[said["values"][step["state"]][0], *numbers] for step, *numbers in zip(
            group["episodes"][k]["steps"], said["deltas"][k], said["raw_advantages"][k], said["advantages"][k],
            strict=True)]
        assert shown == [pytest.approx(row, abs=5.1e-4) for row in expected]


def test_the_pointer_reads_values_off_a_curve(browser, address):
    browser.get(address)
    chart = browser.find_elements(By.CSS_SELECTOR, "figure.chart")[1]
    webdriver.ActionChains(browser).move_to_element(chart.find_element(By.TAG_NAME, "svg")).perform()
    assert "toy success_rate 0.2" in until(lambda: chart.find_element(By.CSS_SELECTOR, ".readout").text.strip())  # noqa: PLW0108 found anew each time
