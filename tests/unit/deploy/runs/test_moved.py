"""Paths below a folder of runs lead to the present place of that folder."""

from pathlib import Path

import pytest

from deploy.runs.folder import relocate


@pytest.mark.parametrize(("path", "before", "found"), [
    ("/old/runs/swept/full/model", "/old/runs/swept", "/now/full/model"),
    ("/old/runs/swept/full/model", "runs/swept", "/now/full/model"),
    ("/runs/swept/runs/swept/full/model", "runs/swept", "/now/full/model"),
    ("/old/../runs/swept/full/model", "../runs/swept", "/now/full/model"),
    ("runs/swept/full/model", "runs/swept", "/now/full/model"),
    ("/models/runs/swept/full/model", "/runs/swept", "/models/runs/swept/full/model"),
    ("/models/qwen", "runs", "/models/qwen"),
    ("/models/qwen", ".", "/models/qwen"),
])
def test_a_path_below_a_folder_of_runs_moves_with_it(path: str, before: str, found: str):
    assert relocate(Path(path), Path(before), Path("/now")) == Path(found)
