"""The audit of a run whose Redis is gone."""

import time
from pathlib import Path

from ports import likely_port

from deploy.commands.audit import read_journal
from deploy.runs.configs import default_config
from deploy.runs.folder import RunFolder


def test_it_does_not_wait_as_long_for_redis_as_the_run_itself(tmp_path: Path):
    """The run would wait for five minutes; whoever asks about it is told soon what the folder says."""
    folder = RunFolder(tmp_path)
    folder.identity_file.write_text('{"run": "over"}')
    started = time.monotonic()
    assert read_journal(folder, default_config([f"redis.url=redis://127.0.0.1:{likely_port()}/0"])) is None
    assert time.monotonic() - started < 60
