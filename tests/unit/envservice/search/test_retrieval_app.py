"""The retrieval server under requests that no client sends, and its command line."""

import json
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from envservice.search.app import create_retrieval_app, main
from envservice.search.facts import world
from envservice.search.retrieval import IndexRetriever


@pytest.mark.attack
@pytest.mark.parametrize("body", [
    '{"query": "\\ud800"}', '{"queries": ["\\ud800"]}', '{"query": 7}', '{"query": "x", "topk": 1e9}', "[" * 50_000,
    "", "\xff",
    '{"query": "x", "topk": NaN}', json.dumps({"query": "x" * 9000}), json.dumps({"queries": ["x"] * 300})],
    ids=lambda body: body[:24])
def test_a_broken_request_is_refused(body: str):
    with TestClient(create_retrieval_app(IndexRetriever(world().documents()))) as client:
        reply = client.post("/retrieve", content=body.encode("latin-1"), headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422), reply.text


def test_a_file_that_cannot_be_read_is_one_line_for_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
):
    monkeypatch.setattr(sys, "argv", ["app", str(tmp_path / "none.jsonl"), "--port", "0"])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert capsys.readouterr().err == (f"error: cannot read {tmp_path}/none.jsonl: No such file or directory; "
                                       "name a file that exists and is readable\n")
