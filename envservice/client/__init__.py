"""The client of environment servers and its request batching."""
