"""Pages and keys over walk/: a cold start, an evaluation and a step of a run, recorded with its tokenizer by
`gagpo train --config walk/config.yaml`. Columns of the archive that came later are null."""

import json
import re
import shlex
import urllib.request

import pytest

from deploy.cli import main

pytest.importorskip("selenium", reason="selenium is not installed")
from browsing import press, until
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WALKED = "/walk/episode/step-00000001/0/train/00000004"


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
            with urllib.request.urlopen(note.get_attribute("href"), timeout=60) as reply:
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
