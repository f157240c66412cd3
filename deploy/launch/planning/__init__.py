"""The plan of a run from its config alone: processes, GPUs, memory, task sets, and settings that are hardly meant."""
