"""Writes the pages of docs/reference/ from the code, so that they always agree with it."""
