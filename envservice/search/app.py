"""A retrieval server over a file of documents, with the API that Search-R1 and verl-agent use:

    python -m envservice.search.app documents.jsonl --port 8000

POST /retrieve takes {"query": str} or {"queries": [str, ...]}, optionally with "topk" and "return_scores". It returns
one list of documents for each query, best first, ranked by BM25. It only reads, so it needs no token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field, model_validator

from envservice.search.facts import world
from envservice.search.questions import read_documents
from envservice.search.retrieval import IndexRetriever
from services.errors import UserError
from services.http.server import Server, bind, server_config
from services.http.strict_json import StrictRoute
from services.process.addresses import host_port, is_local

TOPK = 3
Query = Annotated[str, Field(max_length=8192)]


class Retrieve(BaseModel):
    """One query, or several. If both are given, `query` is ignored."""

    query: Query | None = None
    queries: Annotated[list[Query], Field(max_length=256)] | None = None
    topk: Annotated[int, Field(ge=1, le=100)] | None = None
    return_scores: bool = False

    @model_validator(mode="after")
    def _asked(self) -> Retrieve:
        if self.query is None and self.queries is None:
            raise ValueError("give query or queries")
        return self


def create_retrieval_app(retriever: IndexRetriever) -> FastAPI:
    """Makes the application over one index."""
    app = FastAPI(title="gagpo retrieval", version="1", docs_url=None, redoc_url=None)
    app.router.route_class = StrictRoute

    @app.post("/retrieve")
    def retrieve(asked: Retrieve) -> dict[str, list[list[dict[str, Any]]]]:
        """Finds the best documents for each query."""
        queries = asked.queries if asked.queries is not None else [asked.query or ""]
        return {"result": [_hits(retriever, query, asked) for query in queries]}

    @app.get("/healthz")
    def healthz() -> dict[str, int]:
        """Returns the number of documents."""
        return {"documents": len(retriever)}

    return app


def _hits(retriever: IndexRetriever, query: str, asked: Retrieve) -> list[dict[str, Any]]:
    hits = [({"id": hit.id, "contents": contents}, hit.score)
            for hit, contents in retriever.hits(query, asked.topk or TOPK)]
    if asked.return_scores:
        return [{"document": document, "score": score} for document, score in hits]
    return [document for document, _ in hits]


def main() -> None:
    """Serves until SIGTERM or Ctrl-C, and prints its URL when ready. Exits with 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(description="Serves BM25 retrieval over a jsonl file of {id, contents}.")
    parser.add_argument("documents", type=Path, nargs="?", help="the file (default: the invented facts)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one")
    args = parser.parse_args()
    try:
        _serve(args.documents, args.host, args.port)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")


def _serve(documents: Path | None, host: str, port: int) -> None:
    with contextlib.closing(bind(host, port)) as listener:
        retriever = IndexRetriever(read_documents(documents) if documents else world().documents())
        server = Server(server_config(create_retrieval_app(retriever), local_only=is_local(host)))
        address = host_port(host, listener.getsockname()[1])
        print(f"{len(retriever)} documents on http://{address}/retrieve", flush=True)
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
