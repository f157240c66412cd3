"""The reference of the KL term runs only forwards, and stays as it is for a whole run."""

from learner_tiny import CASES, make_config, make_groups

from learner.trainer import Learner


def test_passes_of_the_reference_leave_nothing_behind(model_path, rank_group):
    """FSDP lists each forward pass until the next backward pass, which never comes: 1 GB after a thousand steps."""
    learner = Learner(make_config(**CASES["token-tokens"]), model_path, rank_group)
    state = learner.stepper.reference._get_fsdp_state()
    for step in range(2):
        learner.train(make_groups(step, step=step))
        assert state._comm_ctx.post_forward_order == []
        groups = [group for one in state._state_ctx.all_states for group in one._fsdp_param_groups]
        assert groups
        assert [group for group in groups if group._post_forward_indices] == []
