"""The self-test of the learner on one machine: `python -m learner.selftest`, without vLLM, Ray, Redis or a network."""
