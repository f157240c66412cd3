"""Debian's chromium without a window, driven through chromedriver, and what it looks at."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browsing import explored

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MAKER = Path(__file__).parents[3] / "unit/deploy/explorer/explorer_run.py"


def make_run(folder, **options):
    spec = importlib.util.spec_from_file_location("explorer_run", MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_run(folder, **options)


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    with explored(make_run(folder / "toy"), make_run(folder / "other", steps=2, estimator="gagpo_loo")) as found:
        yield found


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A copy, as the explorer keeps its indexes in the run's folder."""
    folder = shutil.copytree(Path(__file__).parent / "walk", tmp_path_factory.mktemp("recorded") / "walk")
    with explored(folder) as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()
