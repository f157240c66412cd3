"""The retrieval server under requests that no client sends."""

import json

import pytest
from fastapi.testclient import TestClient

from envservice.search.app import create_retrieval_app
from envservice.search.facts import world
from envservice.search.retrieval import IndexRetriever

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("body", [
    '{"query": "\\ud800"}', '{"queries": ["\\ud800"]}', '{"query": 7}', '{"query": "x", "topk": 1e9}', "[" * 50_000,
    "", "\xff",
    '{"query": "x", "topk": NaN}', json.dumps({"query": "x" * 9000}), json.dumps({"queries": ["x"] * 300})],
    ids=lambda body: body[:24])
def test_a_broken_request_is_refused(body: str):
    with TestClient(create_retrieval_app(IndexRetriever(world().documents()))) as client:
        reply = client.post("/retrieve", content=body.encode("latin-1"), headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422), reply.text
