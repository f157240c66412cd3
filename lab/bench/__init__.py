"""Benchmarks: each module measures one part against its reference and returns its results."""
