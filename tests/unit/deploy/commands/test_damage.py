"""Every file of a run's folder, damaged in every way: each command says so in one line, and none breaks."""

import random
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from deploy.cli import main
from deploy.explorer.app import create_app
from deploy.explorer.runs import open_runs
from services.errors import UserError

WALK = Path(__file__).parents[4] / "tests" / "integration" / "deploy" / "explorer" / "walk"
"""A run that was recorded."""
FILES = [file.relative_to(WALK) for file in sorted(WALK.rglob("*")) if file.is_file() and file.suffix != ".parquet"]
PAGES = ("/", "/walk/evaluations", "/walk/groups", "/walk/group/step-00000001/train/00000004",
         "/walk/episode/step-00000001/0/train/00000004")
GROWTH_KIB = 300 << 10


def damaged(data: bytes) -> Iterator[bytes]:
    """Cut off, bits flipped, other types, nested deeply, large, no text at all."""
    rng = random.Random(0)
    yield from (b"", data[: len(data) // 2], b'{"format": "x", "step": {}, "run": 3, "label": []}\n[]\n', b"[" * 50_000,
                b"a: " + b"{a: " * 3000, bytes(range(256)) * 40, b'"' + b"x" * (2 << 20))
    for _ in range(4):
        flipped = bytearray(data)
        for _ in range(3):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_damaged_file_of_a_run_is_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "walk"
    shutil.copytree(WALK, run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in damaged((WALK / file).read_bytes()):
        (run / file).write_bytes(data)
        status = main(["status", str(run)])
        said = capsys.readouterr().err
        assert (status, said.count("\n")) in ((0, 0), (2, 1)), said
        assert "Traceback" not in said
        try:
            client = TestClient(create_app(open_runs([run]), token=None), base_url="http://127.0.0.1")
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either a line or pages
        else:
            assert all(client.get(page).status_code in (200, 404, 422) for page in PAGES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


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
    ["export", "/dev/null", "/proc/none"], ["report", "/dev/null"], ["report", "/proc/1/nothing"]], ids=" ".join)
def test_what_is_no_file_of_ours_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1
