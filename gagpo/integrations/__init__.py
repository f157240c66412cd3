"""Credit per step inside other trainers: verl and SkyRL, by their registries of estimators and rows that are steps, and
TRL, by a subclass of its trainer."""
