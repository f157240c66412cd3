"""The explorer in a real browser, over two made runs that hold what a calm one does not."""

import re

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
from browsing import press, until
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WIDER = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("* { letter-spacing: .3em !important; font-family: monospace !important }");
document.adoptedStyleSheets = [sheet];
for (const folded of document.querySelectorAll("details")) folded.open = true;
return [getComputedStyle(document.querySelector("main")).letterSpacing, document.documentElement.scrollWidth]"""
"""Style for other machines' fonts: all text is half as wide again, and everything is unfolded."""
REVERSED = """
return [...document.querySelectorAll(".act .quiet, .flag, .verdict p a")].filter((shown) => {
  const letters = document.createRange();
  const left = (i) => {
    letters.setStart(shown.firstChild, i);
    letters.setEnd(shown.firstChild, i + 1);
    return letters.getBoundingClientRect().left;
  };
  return left(0) > left(1);
}).map((shown) => shown.textContent)"""
"""The page's own words and numbers beside actions, of which the second letter stands left of the first."""
EPISODE = "/toy/episode/step-00000001/0/train/00000100"


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("path", [
    "/", "/toy/groups", "/toy/evaluations", "/toy/config", "/toy/group/step-00000001/train/00000100?k=0", EPISODE,
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


@pytest.mark.parametrize("path", ["/toy/group/step-00000001/train/00000100", *(
    f"/toy/episode/step-00000001/{k}/train/00000100" for k in range(4))])
def test_an_action_from_right_to_left_turns_no_number_of_the_page_round(browser, address, path):
    browser.get(address + path)
    assert browser.execute_script("return document.body.textContent.includes('\u202e')")
    assert browser.execute_script(REVERSED) == []


def test_from_the_curves_to_the_step_that_lost_an_episode(browser, address):
    """The path of a new user: groups whose returns differ most, a lost episode, its verdict."""
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
    group = row.find_element(By.CSS_SELECTOR, ".task a").get_attribute("href").rpartition("/train/")[2]
    row.find_element(By.CSS_SELECTOR, "a.lost").click()
    until(lambda: "/toy/episode/" in browser.current_url)
    assert browser.current_url.endswith(f"/train/{group}")
    assert browser.find_element(By.CSS_SELECTOR, "h1 .end").get_attribute("class") == "end lost"


def test_the_ends_of_a_state_graph_lie_beside_each_other(browser, address):
    browser.get(f"{address}/toy/group/step-00000001/train/00000100")
    left, right = sorted((box.rect for box in browser.find_elements(By.CSS_SELECTOR, ".endnode rect")),
                         key=lambda box: box["x"])
    assert left["x"] + left["width"] <= right["x"]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_state_graph_is_never_drawn_smaller_than_its_labels_need(browser, address, width):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600})
    browser.get(f"{address}/toy/group/step-00000001/train/00000100")
    drawn, meant = browser.execute_script(
        "const graph = document.getElementById('states'); return [graph.clientWidth, graph.viewBox.baseVal.width]")
    assert drawn >= meant
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_cells_of_a_long_episode_are_narrow_on_a_phone_and_not_low(browser, address):
    browser.get(f"{address}/toy/group/step-00000001/train/00000100")
    width, height = browser.execute_script("""
const strip = document.querySelector(".strip");
strip.style.width = "20px";
const cell = strip.querySelector("rect").getBoundingClientRect();
return [cell.width, cell.height]""")
    assert width < 2
    assert height == 14


def test_the_box_of_an_end_holds_its_text(browser, address):
    browser.get(f"{address}/toy/group/step-00000001/train/00000100")
    text, box = browser.execute_script("""
const end = document.querySelector(".endnode");
end.querySelector("text").textContent = "64 out of context";
return ["text", "rect"].map((name) => end.querySelector(name).getBBox().width)""")
    assert text < box


def test_filters_narrow_the_list_and_the_address_holds_them(browser, address):
    browser.get(f"{address}/toy/groups")
    browser.find_element(By.NAME, "task").send_keys("a-30")
    browser.find_element(By.CSS_SELECTOR, ".filters button").click()
    until(lambda: "task=a-30" in browser.current_url)
    assert [row.text.split()[1] for row in browser.find_elements(By.CSS_SELECTOR, "tr[data-row]")] == ["a-300"]


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


def test_a_deep_link_opens_at_its_step(browser, address):
    browser.get(f"{address}{EPISODE}#step-1")
    assert "at" in browser.find_element(By.ID, "step-1").get_attribute("class").split()


def test_the_pointer_reads_values_off_a_curve(browser, address):
    browser.get(address)
    chart = browser.find_elements(By.CSS_SELECTOR, "figure.chart")[1]
    webdriver.ActionChains(browser).move_to_element(chart.find_element(By.TAG_NAME, "svg")).perform()
    assert "toy 20%" in until(lambda: chart.find_element(By.CSS_SELECTOR, ".readout").text.strip())  # noqa: PLW0108 found anew each time


@pytest.mark.parametrize("line", [0, 1])
def test_a_click_on_a_curve_leads_to_the_groups_of_its_own_run(browser, address, line):
    browser.get(address)
    chart = next(chart for chart in browser.find_elements(By.CSS_SELECTOR, "figure.chart svg[data-series]")
                 if "length" in chart.get_attribute("aria-label"))
    name, step, right, down = browser.execute_script("""
        const [svg, index] = arguments, box = svg.getBoundingClientRect(), line = JSON.parse(svg.dataset.series)[index];
        const point = svg.querySelector(`polyline.thin[data-line="${index}"]`).points[0];
        return [line.name, line.steps[0], point.x / 420 * box.width - box.width / 2,
                point.y / 184 * box.height - box.height / 2]""", chart, line)
    webdriver.ActionChains(browser).move_to_element_with_offset(chart, round(right), round(down)).click().perform()
    run = name.split()[0]
    until(lambda: browser.current_url == f"{address}/{run}/groups?first={step}&last={step}")
    assert run == ("toy", "other")[line]
