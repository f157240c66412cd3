"""The receiving side of weights that come from GPU to GPU."""
