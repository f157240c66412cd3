"""`python -m lab.simulation`: predicts the speed and the cost of a run from measured times of its parts."""
