"""Answers of retrieval servers that are none."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from envservice.search.retrieval import HttpRetriever
from services.errors import EnvFault


@pytest.mark.parametrize("result", [
    '[[{"document": {"contents": null}, "score": 1.0}]]', '[[{"document": {"text": "x"}}]]', '[["x"]]', "[[]", "[]",
    "null"])
def test_an_answer_without_texts_is_a_fault_and_no_evidence(result: str):
    """`null` was shown to the policy as the text None."""
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
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(EnvFault, match="is not a search result"):
            HttpRetriever([f"http://127.0.0.1:{server.server_port}/retrieve"], deadline_s=60).search("river", 1)
        thread.join(60)
