"""Our step-level estimators inside other trainers: verl and SkyRL, by their registries of advantage estimators, and
TRL, by a subclass of its trainer."""
