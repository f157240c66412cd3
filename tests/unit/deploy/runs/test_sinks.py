"""A run's rows in TensorBoard and W&B, read back from what they wrote."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.runs import sinks
from services.config.tree import Config
from services.errors import UserError

ROW = {"format": 1, "step": 3, "version": "1.3", "time": 1.0, "success_rate": 0.25, "loss/policy": -0.125,
       "grad_norm": None}
EVALUATION = {"format": 1, "label": "step-000003", "step": 3, "split": "valid", "temperature": 0.4, "tasks": 8,
              "success_rate": 0.5, "task_score": None, "success_by_type": {"pick": 0.75}, "success_by_task": {"a": 1.0}}

BLOCK, WHOLE, LAST = 32 << 10, 1, 4
"""LevelDB's log: the size of a block, and the kinds of a piece that ends a record."""


def config(*names: str) -> Config:
    return Config.model_validate({"name": "tiny", "steps": 4, "metrics": {"sinks": names}})


def write(folder: Path, name: str) -> None:
    with sinks.sinks(config(name), folder, "tiny-1") as tell:
        tell.step(ROW)
        tell.evaluation(EVALUATION)


def test_tensorboard_holds_every_figure_at_its_step(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    write(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
             for tag in events.Tags()["tensors"]}
    assert found == {
        "success_rate": [(3, 0.25)], "loss/policy": [(3, -0.125)], "evaluation/valid-T0.4/success_rate": [(3, 0.5)],
        "evaluation/valid-T0.4/success/pick": [(3, 0.75)]}


def records(path: Path) -> Iterator[bytes]:
    """The whole records of a W&B file so far, in blocks of 32 KiB as in LevelDB's log. One may lie across a border."""
    content, record, at = path.read_bytes(), b"", 7  # the file begins with seven bytes of its own
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:  # too small for a header: padding
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7:at + 7 + size]
        at += 7 + size
        if at > len(content):  # W&B still writes it
            return
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def test_wandb_writes_a_run_to_be_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    sinks.check(config("wandb"))
    write(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-tiny-1.wandb")
    deadline, found = time.monotonic() + 60, []
    while "exit" not in [record.WhichOneof("record_type") for record in found]:
        assert time.monotonic() < deadline, "W&B's own process has not ended the file"
        found = [Record.FromString(record) for record in records(file)]
    rows = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in found if record.WhichOneof("record_type") == "history"]
    logged = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    assert logged == [
        {"step": 3, "success_rate": 0.25, "loss/policy": -0.125},
        {"step": 3, "evaluation/valid-T0.4/success_rate": 0.5, "evaluation/valid-T0.4/success/pick": 0.75}]


AWAY = """
import sys
from pathlib import Path
from deploy.runs.sinks import check, sinks
from services.config.tree import Config
from services.telemetry.logs import configure_logs

configure_logs(Path(sys.argv[1]), show=None)
config = Config.model_validate({"name": "tiny", "steps": 4, "metrics": {"sinks": ["wandb", "tensorboard"]}})
check(config)
with sinks(config, Path(sys.argv[1]), "tiny-1") as tell:
    tell.step({"step": 1, "loss": 0.5})
print("goes on")
"""


@pytest.mark.long
def test_wandb_out_of_reach_at_the_start_costs_its_rows_alone(tmp_path: Path):
    """It ended the run, and a fault of the same network one step later did not."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")} | {
        "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "5",
        "WANDB_ERROR_REPORTING": "false", "PYTHONUNBUFFERED": "1"}  # W&B's lines have another way to stdout
    done = subprocess.run([sys.executable, "-c", AWAY, str(tmp_path)], capture_output=True, text=True,
                          timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("goes on\n")  # W&B says goodbye after it
    (line,) = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert line["event"] == "wandb cannot be opened; the run continues without it"
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_sink_without_its_package_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match="has tensorboard, and the package is not installed") as caught:
        sinks.check(config("tensorboard"))
    assert caught.value.fix == "pip install tensorboard"


def test_wandb_without_a_login_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="there is no login"):
        sinks.check(config("wandb"))
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    sinks.check(config("wandb"))


def test_without_sinks_nothing_is_opened(tmp_path: Path):
    sinks.check(config())
    with sinks.sinks(config(), tmp_path, "tiny-1") as tell:
        tell.step(ROW)
    assert not list(tmp_path.iterdir())


FULL = """
import resource, sys
from pathlib import Path
from deploy.runs.sinks import sinks
from services.config.tree import Config
from services.telemetry.logs import configure_logs

folder, back = Path(sys.argv[1]), sys.argv[2] == "back"
configure_logs(folder, show=None)
config = Config.model_validate({"name": "tiny", "steps": 4, "metrics": {"sinks": ["tensorboard"]}})
with sinks(config, folder, "tiny-1") as tell:
    tell.step({"step": 1, "loss": 0.5} | {f"figure/{index}": 1.0 for index in range(50)})  # the log fits the limit
    (file,) = (folder / "tensorboard").iterdir()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, limit[1]))
    for step in (2, 3):
        tell.step({"step": step, "loss": 0.25})
    if back:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        tell.step({"step": 4, "loss": 0.125})
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
print("goes on")
"""


@pytest.mark.parametrize(("disk", "steps", "told"), [
    ("back", [1, 2, 3, 4], ["tensorboard cannot be written; the run continues without it until it can"]),
    ("full", [1], [
        "tensorboard cannot be written; the run continues without it until it can",
        "tensorboard lacks the run's last rows"])])
def test_a_full_disk_costs_tensorboard_s_rows_at_most_and_never_the_run(
    tmp_path: Path, disk: str, steps: list[int], told: list[str],
):
    """A limit on the size of files has the effect of a full disk: it leaves a part of a row in the file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), disk], capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("goes on\n", "")
    assert [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == told
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Tensors("loss")] == steps
