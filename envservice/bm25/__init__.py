"""Ranking of text documents as Lucene ranks them, over flat arrays that processes share."""
