"""Imitation before reinforcement learning: tokenizer, model from scratch, next-token training."""
