"""Retrieval servers that give no answer, or one that is none."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from envservice.search.retrieval import PAUSE_S, HttpRetriever
from services.errors import EnvFault, Unavailable


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


def test_an_answer_that_never_ends_is_none():
    """Each byte came in time, so the search, and all games of its server behind it, waited without end."""
    def trickle(listener: socket.socket) -> None:
        asked, _ = listener.accept()
        with asked, suppress(OSError):
            asked.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while True:
                asked.sendall(b" ")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=[listener], daemon=True)
        thread.start()
        with pytest.raises(Unavailable, match="no complete answer within"):
            HttpRetriever([f"http://127.0.0.1:{listener.getsockname()[1]}/"], deadline_s=0.5).search("river", 1)
        thread.join(60)
        assert not thread.is_alive()


def test_while_no_server_answers_the_next_searches_fail_at_once_and_then_ask_again():
    """They would wait one after the other, and all other games of the environment server behind them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    retriever = HttpRetriever([f"http://127.0.0.1:{port}/retrieve"], deadline_s=0.3)
    with pytest.raises(Unavailable) as first:
        retriever.search("river", 1)
    with answering('[[{"contents": "a river"}]]', port):
        with pytest.raises(Unavailable) as second:
            retriever.search("river", 1)
        assert str(second.value) == str(first.value)
        time.sleep(PAUSE_S)
        assert retriever.search("river", 1) == ["a river"]


@contextmanager
def answering(result: str, port: int = 0) -> Iterator[str]:
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

    with HTTPServer(("127.0.0.1", port), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/retrieve"
        finally:
            server.shutdown()
            thread.join(60)
