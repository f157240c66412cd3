"""Retrieval servers that give no answer, or one that is none."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from envservice.search.retrieval import HttpRetriever
from services.errors import EnvFault


@pytest.mark.parametrize("result", [
    '[[{"document": {"contents": null}, "score": 1.0}]]', '[[{"document": {"text": "x"}}]]', '[["x"]]', "[[]", "[]",
    "null"])
def test_an_answer_without_texts_is_a_fault_and_no_evidence(result: str):
    """`null` was shown to the policy as the text None."""
    with answering(result) as url, pytest.raises(EnvFault, match="is not a search result"):
        HttpRetriever([url], deadline_s=60).search("river", 1)


def test_a_server_that_hangs_leaves_time_to_ask_the_next_one():
    """It had the whole deadline to itself, so every search that began with it failed."""
    with socket.create_server(("127.0.0.1", 0)) as hung, answering('[[{"contents": "a river"}]]') as good:
        retriever = HttpRetriever([f"http://127.0.0.1:{hung.getsockname()[1]}/retrieve", good], deadline_s=2)
        assert retriever.search("river", 1) == ["a river"]


@contextmanager
def answering(result: str) -> Iterator[str]:
    """Yields the URL of a retrieval server that gives each request this result."""
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            body = f'{{"result": {result}}}'.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/retrieve"
        finally:
            server.shutdown()
            thread.join(60)
