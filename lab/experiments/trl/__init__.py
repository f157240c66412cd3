"""TRL's GRPO against TRL with our credit."""
