"""Episodes: the loop, the vLLM engine, weight updates, demonstrations."""
