"""`gagpo simulate`: predicts the speed and the cost of a run from measured times of its parts."""
