"""Policy versions on their way from the learner to every rollout worker."""
