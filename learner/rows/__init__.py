"""From the groups of a learner step to packed rows with credit."""
