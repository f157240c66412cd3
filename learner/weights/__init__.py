"""New weights on their way to the samplers: through host memory, and from GPU to GPU."""
