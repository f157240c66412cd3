"""Every file of a run's folder is damaged in every way. Each command says so in one line, and none crashes."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from deploy.cli import main
from deploy.explorer.app import create_app
from deploy.explorer.runs import open_runs
from learner.checkpoints.checkpoint import EXPORT, Checkpoints, Position
from services.errors import UserError

pytestmark = pytest.mark.attack

WALK = Path(__file__).parents[4] / "tests" / "integration" / "deploy" / "explorer" / "walk"
"""Folder of a recorded run."""
FULL = bool(os.environ.get("GAGPO_FUZZ"))
"""Every command on every file with every damage, which takes minutes: `GAGPO_FUZZ=1` and -k fuzz."""
FILES = [file.relative_to(WALK) for file in sorted(WALK.rglob("*")) if file.is_file() and file.suffix != ".parquet"]
PAGES = ("/", "/walk/evaluations", "/walk/groups", "/walk/group/step-00000001/train/00000004",
         "/walk/episode/step-00000001/0/train/00000004")
GROWTH_KIB = 300 << 10
KEYS = {
    "metrics.jsonl": ("step", "version", "time", "success_rate", "episode_length", "staleness_mean", "staleness_max",
                      "grad_norm", "loss/entropy", "credit/flat_share"),
    "evaluations.jsonl": ("label", "temperature", "step", "version", "split", "tasks", "episodes", "success_rate",
                          "success_low", "success_high", "success_by_task")}
"""Keys that commands read."""


def damaged(data: bytes) -> Iterator[bytes]:
    """Yields damaged contents: cut off, bits flipped, other types, deeply nested, large, not text."""
    rng = random.Random(0)
    yield from (b"", data[: len(data) // 2], b'{"format": "x", "step": {}, "run": 3, "label": []}\n[]\n', b"[" * 50_000,
                b"a: " + b"{a: " * 3000, bytes(range(256)) * 40, b'"' + b"x" * (2 << 20))
    for _ in range(4):
        flipped = bytearray(data)
        for _ in range(3):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_damaged_file_of_a_run_is_a_line_for_each_mistake(
        file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "walk"
    shutil.copytree(WALK, run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in damaged((WALK / file).read_bytes()):
        (run / file).write_bytes(data)
        status = main(["status", str(run)])
        said = capsys.readouterr().err
        lines = said.splitlines()  # 1: lines were left out, which stdout says
        assert status in (0, 1, 2)
        assert bool(lines) == (status == 2), said
        assert all(line.startswith("error: ") for line in lines), said  # one for each mistake of a config
        assert "Traceback" not in said
        try:
            client = TestClient(create_app(open_runs([run]), token=None), base_url="http://127.0.0.1")
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either a line or pages
        else:
            assert all(client.get(page).status_code in (200, 404, 422) for page in PAGES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


OTHERS = {
    "wanted.json": b'{"rollout": 2, "env": 1}',
    "stage.json": b'{"since": 1.0, "at": 2.0, "host": "h", "pid": 1, "born": 1.0, "ended": "finished"}',
    "ledger.jsonl": b'{"step": 1, "incarnation": 1, "groups": [], "drops": []}\n',
    "eval.jsonl": b'{"label": "eval", "temperature": 1.0, "success_rate": 0.5}\n',
    "summary.json": b'{"heldout": null}', "checkpoints/latest.json": b'{"step": 1}',
    "checkpoints/best.json": b'{"step": 1, "score": 0.5}', "checkpoints/step-00000001/meta.json": b"{}"}
"""Files of a run that the recorded one lacks."""
READS = {
    "status": ("config.yaml", "metrics.jsonl", "evaluations.jsonl", "stage.json"),
    "scale": ("config.yaml", "wanted.json", "stage.json"),
    "audit": ("config.yaml", "run.json", "metrics.jsonl", "evaluations.jsonl", "ledger.jsonl",
              "episodes/step-00000001.parquet"),
    "report": ("config.yaml", "run.json", "metrics.jsonl", "evaluations.jsonl", "summary.json",
               "episodes/step-00000001.parquet"),
    "export": ("config.yaml", "checkpoints/latest.json", "checkpoints/step-00000001/meta.json"),
    "eval": ("config.yaml", "checkpoints/latest.json", "checkpoints/step-00000001/meta.json"),
    "train --dry-run --resume": ("config.yaml", "run.json")}
"""Each command and the files by which it decides."""
CASES = [(command, file) for command, read in READS.items()
         for file in ([*map(str, FILES), *OTHERS, "episodes/step-00000001.parquet"] if FULL else read)]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch):
    """Figures are computed and not painted: matplotlib's painting is most of a report's time."""
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.setattr(Figure, "savefig", lambda _figure, out, **_: Image.new("RGB", (2, 2)).save(out, format="png"))
    monkeypatch.setattr(Figure, "tight_layout", lambda _figure: None)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("command", "file"), CASES)
def test_fuzz_of_files_and_commands(command: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file that is no longer what it was is told in one line, and no command that decides by it ends with 0."""
    run = tmp_path / "walk"
    shutil.copytree(WALK, run)
    for name, content in OTHERS.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, data in enumerate(damaged((run / file).read_bytes())):
        beyond_doubt = number in (2, 3, 5)
        if not (FULL or beyond_doubt or number == 7):
            continue
        (run / file).write_bytes(data)
        status = main([*command.split(), str(run), *([str(tmp_path / "out")] if command == "export" else [])])
        said = capsys.readouterr()
        assert status in (0, 1, 2), said
        assert "Traceback" not in said.out + said.err, said
        assert said.err.count("\n") == 1 or status != 2, said
        assert status or not beyond_doubt or file not in READS[command], (number, said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_key_that_a_line_lacks_or_that_is_null_breaks_no_command(
        name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "walk"
    shutil.copytree(WALK, run)
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    client = TestClient(create_app(open_runs([run]), token=None), base_url="http://127.0.0.1")
    for key in KEYS[name]:
        for change in ({}, {key: None}):
            (run / name).write_text("".join(json.dumps(
                {other: value for other, value in line.items() if other != key} | change) + "\n" for line in lines))
            for argv in (["status", str(run)], ["audit", str(run)]):
                main(argv)
                assert "Traceback" not in capsys.readouterr().err, (key, argv)
            assert all(client.get(page).status_code == 200 for page in ("/", "/walk/evaluations")), key


def test_text_of_a_folder_gives_the_terminal_no_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(WALK, run := tmp_path / "walk")
    told = msgspec.json.decode(OTHERS["stage.json"]) | {"ended": "\x1b]0;owned\x07\x9b2J"}
    (run / "stage.json").write_bytes(msgspec.json.encode(told))
    assert main(["status", str(run)]) == 0
    assert main(["status", str(tmp_path / "\x1b[31mred")]) == 2
    said = capsys.readouterr()
    assert "owned" in said.out
    assert "[31mred" in said.err
    assert not {"\x1b", "\x07", "\x9b"} & set(said.out + said.err)


def test_a_damaged_archive_is_one_line_in_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(WALK, run := tmp_path / "walk")
    file = run / "episodes" / "step-00000001.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    assert main(["audit", str(run)]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "step-00000001.parquet cannot be read" in said) == (1, True)


@pytest.mark.parametrize("version", ["x", "1", "1.x", "1.2,", None])
def test_an_archive_with_a_wrong_version_is_one_line_in_an_audit(
        version: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(WALK, run := tmp_path / "walk")
    file = run / "episodes" / "step-00000001.parquet"
    table = pq.read_table(file)
    column = table.column_names.index("version")
    pq.write_table(table.set_column(column, "version", pa.array([version] * len(table), pa.string())), file)
    assert main(["audit", str(run)]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), f"step-00000001.parquet has the version {str(version)!r}" in said) == (1, True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """Provides a run's folder with a checkpoint and a trained model."""
    run = tmp_path_factory.mktemp("runs") / "walk"
    shutil.copytree(WALK, run)
    tiny_model(tied=True, seed=0).save_pretrained(run / "model")
    checkpoints = Checkpoints(run / "checkpoints", keep=1)
    shutil.copytree(run / "model", checkpoints.draft(1) / EXPORT)
    checkpoints.commit(Position(step=1, incarnation=1, next_group=1, trained=1))
    return run


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "meta.json", "a link"])
def test_a_damaged_checkpoint_is_not_exported(
        name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    checkpoint = run / "checkpoints" / "step-00000001"
    if name == "a link":
        (checkpoint / EXPORT / "config.json").unlink()
        (checkpoint / EXPORT / "config.json").symlink_to("/etc/passwd")
    else:
        file = checkpoint / name if name == "meta.json" else checkpoint / EXPORT / name
        file.write_bytes(file.read_bytes()[:-1])
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


PIPED = [*dict.fromkeys([*map(str, FILES), *OTHERS]), "episodes/step-00000001.parquet", "log.jsonl", "mirror.json",
         "redis/redis.log", "model/config.json", "model/model.safetensors", "model/tokenizer.json",
         *(f"checkpoints/step-00000001/hf/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json"))]
"""Files of a run that are replaced by a pipe."""


class Hung(BaseException):
    """A command waits for a writer or a reader of a pipe."""


@pytest.mark.usefixtures("undrawn")
def test_a_pipe_in_the_place_of_any_file_of_a_run_hangs_no_command(
        trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each file in turn is a pipe that nobody writes or reads, or a link to one. With GAGPO_FUZZ=1 each is both."""
    signal.signal(signal.SIGALRM, hang)
    os.mkfifo(pipe := tmp_path / "pipe")
    for number, file in enumerate(PIPED):
        for linked in ((True, False) if FULL else (bool(number % 2),)):
            run = tmp_path / f"walk-{number}-{linked}"
            shutil.copytree(trained, run)
            for name, content in OTHERS.items():
                (run / name).exists() or (run / name).write_bytes(content)
            (run / file).parent.mkdir(exist_ok=True)
            (run / file).unlink(missing_ok=True)
            (run / file).symlink_to(pipe) if linked else os.mkfifo(run / file)
            for command in ("status", "audit", "report", "export"):
                signal.alarm(30)
                status = main([command, str(run), *([str(run.with_suffix(".out"))] if command == "export" else [])])
                signal.alarm(0)
                said = capsys.readouterr()
                assert "Traceback" not in said.out + said.err, (file, command, said)
                assert said.err.count("\n") == 1 or status != 2, (file, command, said)
            signal.alarm(30)
            try:
                client = TestClient(create_app(open_runs([run]), token=None), base_url="http://127.0.0.1")
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either a line or pages
            else:
                assert all(client.get(page).status_code in (200, 404, 422) for page in PAGES), file
            signal.alarm(0)
            shutil.rmtree(run)


def hang(*_: object) -> None:
    """Ends a wait of the main thread."""
    raise Hung


@pytest.mark.parametrize("argv", [
    ["eval"], ["play", "alfworld-gen/valid/look-0001", "--json", "--agent"]], ids=["eval", "play"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", [b"\xff" * 64, b"[" * 50_000, b'{"model_type": 3}'],
                         ids=["no text", "deep", "wrong type"])
def test_a_damaged_model_is_one_line(argv: list[str], name: str, damage: bytes, trained: Path, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]):
    shutil.copytree(trained, run := tmp_path / "run")
    (run / "model" / name).write_bytes(damage)
    assert main([*argv, str(run)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said


AS_NOBODY = """
import os, sys
from deploy.cli import main
commands = [["status"], ["report"], ["audit"], ["export"], ["train", "--resume"], ["scale"]]
def all_of(run):
    return [main([*command, run, *(["never"] if command == ["export"] else [])]) for command in commands]
all_of("/nonexistent")  # imports what the commands need, while it may still be read
os.setgroups([]), os.setgid(65534), os.setuid(65534)
print("now", file=sys.stderr)
print(all_of(sys.argv[1]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user_is_one_line(trained: Path):
    trained.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, trained], capture_output=True, text=True, timeout=100,
                          check=False)
    said = done.stderr.partition("now\n")[2]
    assert "Traceback" not in said, said
    assert said.count("error: ") == said.count("\n") == 6, said
    assert "make room" not in said
    assert done.stdout == f"{[2] * 6}\n", "a supervisor starts again after 1, for ever"


@pytest.mark.parametrize("text", [
    "", "{", "[" * 100_000, "null", '{"episodes": 3}', "\x00", '{"episodes": [{"steps": [{}]}]}'])
def test_a_damaged_group_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "group.json").write_text(text)
    assert main(["credit", str(tmp_path / "group.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("argv", [
    ["credit", "/dev/zero"], ["status", "/dev/zero"], ["train", "--config", "/dev/zero", "--dry-run"],
    ["train", "--config", "alfworld-tiny", "--dry-run", "runs_dir=/dev/null"],
    ["train", "--config", "alfworld-tiny", "--dry-run", "name=.."],
    ["play", "x" * 300], ["eval", "/dev/null"],
    ["eval", "/dev"], ["audit", "/dev/null"], ["explore", "/dev/null"], ["explore", "/dev"],
    ["train", "--resume", "/dev/null"], ["train", "--config", "alfworld-tiny", "--dry-run", "name=" + "x" * 300],
    ["export", "/dev/null", "/proc/none"], ["report", "/dev/null"], ["report", "/proc/1/nothing"]],
    ids=lambda argv: " ".join(argv)[:60])
def test_a_file_of_another_form_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1
