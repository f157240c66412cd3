"""How near each learner step of an estimator is to the gradient of success. README.md has the plan."""
