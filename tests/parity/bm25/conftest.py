import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def jar() -> Path:
    """Provides the jar of the reference."""
    given = os.environ.get("ANSERINI_JAR")
    if not given or shutil.which("javac") is None:
        pytest.skip("needs $ANSERINI_JAR (see record_lucene.py) and a JDK")
    return Path(given)


@pytest.fixture(scope="session")
def human() -> Path:
    """Provides the folder with human_goals.json and goal_query_map.json."""
    given = os.environ.get("WEBSHOP_DATA")
    if not given or not (Path(given) / "human_goals.json").is_file():
        pytest.skip("needs human_goals.json in $WEBSHOP_DATA")
    return Path(given)
