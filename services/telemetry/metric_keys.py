"""The keys of metrics.jsonl, each with its meaning. The list is frozen, because other programs read the file."""

from __future__ import annotations

from collections.abc import Mapping

from services.telemetry.names import PHASES

_PHASE_TEXTS: Mapping[str, str] = {
    "wait": "waiting for the groups of the step",
    "credit": "making advantages and rows of the groups",
    "pack": "packing rows into passes",
    "forward_backward": "forward and backward passes, also of the reference",
    "optimizer": "clipping gradients and updating the weights",
    "evaluation": "waiting until the version before is evaluated",
    "publish": "publishing the weights",
    "checkpoint": "writing the checkpoint and the archive of the step before",
}
METRIC_TEXTS: Mapping[str, str] = {
    "step": "Number of the learner step, from 1.",
    "version": "Version of the weights after the step: incarnation, dot, step.",
    "time": "Unix time at which the row was written.",
    "success_rate": "Share of the step's episodes that were won.",
    "episode_return": "Mean sum of an episode's rewards, times env.reward_scale.",
    "task_score": "Mean of the environment's own score at the end of an episode; null if it has none.",
    "episode_length": "Mean number of turns of an episode.",
    "invalid_share": "Share of the turns trained on whose answer is not well-formed.",
    "inadmissible_share": "Share of the turns trained on whose action is not in the environment's list.",
    "cut_share": "Share of the turns trained on whose answer was ended by its limit of tokens, and not by the policy.",
    "prompt_tokens_mean": "Mean number of tokens of a prompt, over the turns trained on.",
    "prompt_tokens_max": "Greatest number of tokens of a prompt.",
    "response_tokens_mean": "Mean number of tokens of an answer, the end token included, over the turns trained on.",
    "response_tokens_max": "Greatest number of tokens of an answer.",
    "episodes": "Number of the step's episodes: those trained on, and those that dynamic sampling replaced.",
    "env_steps": "Number of turns in these episodes.",
    "tokens_sampled": "Number of tokens that the policy sampled in turns and judgements.",
    "tokens_trained": "Number of tokens in the learner's rows, prompts included.",
    "sequences": "Number of sequences in the learner's passes; a whole conversation is one.",
    "prefix_breaks": "Number of turns whose prompt holds earlier answers as other tokens than were sampled.",
    "staleness_mean": "Mean age of the episodes in learner steps, by the oldest of their tokens.",
    "staleness_max": "Greatest age of an episode in learner steps.",
    "dropped_groups": "Number of training groups dropped since the step before.",
    "reissued_episodes": "Number of episodes that were played in a second or later attempt.",
    "replays": "Number of times that sessions of these episodes were rebuilt.",
    "energy_joules": "Joules of the learner's machine since the row before; null if nothing counts them.",
    "step_seconds": "Wall seconds since the row before; in a learner's first row, since it began to wait for groups.",
    **{f"seconds/{phase}": f"Seconds of {_PHASE_TEXTS[phase]}." for phase in PHASES},
    "loss/policy": "Policy term of the loss, averaged over the step's updates.",
    "loss/value": "The critic's loss; 0 without a critic.",
    "explained_variance": "Share of the variance of the critic's targets that its values from before the step explain: "
                          "1 if it knows each, 0 if no more than their mean; null without a critic.",
    "loss/kl": "Estimate of the KL divergence to the initial policy per token; 0 if learner.loss.kl is 0.",
    "loss/entropy": "Mean entropy of the policy in nats per token.",
    "loss/imitation": "Mean of -log π over the tokens of demonstrated answers; null in a step without imitation.",
    "distill/reverse_kl": "Mean of log π - log π_teacher over the sampled tokens before the step's updates; null if no "
                          "teacher is asked.",
    "grad_norm": "Mean norm of the policy's gradient before clipping; null if an update was skipped.",
    "clip_fraction": "Share of the policy loss whose ratio is clipped, each action or each token with the weight that "
                     "learner.loss.aggregation gives it.",
    "ratio_mean": "Mean ratio of new to old probability, with the same weights.",
    "is_capped_share": "Share of tokens whose importance weight is learner.loss.is_cap.",
    "logprob_difference_mean": "Mean absolute difference of the learner's and the sampler's logprobs per token.",
    "logprob_difference_max": "Largest absolute difference of the learner's and the sampler's logprobs of a token.",
    "credit/group_size_mean": "Mean number of a group's turns in one state.",
    "credit/singleton_share": "Share of turns whose state no other turn of the group has.",
    "credit/mixed_share": "Share of turns that share their state mostly with turns that had other admissible actions; "
                          "null if the environment lists none.",
    "credit/active_share": "Share of turns whose advantage is not 0.",
    "credit/flat_share": "Share of groups in which all advantages are 0.",
    "credit/advantage_iqr": "Interquartile range of the advantages.",
    "credit/share_above_one": "Share of turns whose advantage is above 1 or below -1.",
    "credit/share_2_4": "Share of turns whose state 2 to 4 turns of the group have.",
    "credit/share_5_8": "Share of turns whose state 5 to 8 turns of the group have.",
    "credit/share_above_8": "Share of turns whose state more than 8 turns of the group have.",
    "credit/advantage_mean": "Mean advantage of a turn.",
    "credit/advantage_std": "Standard deviation of the advantages.",
    "credit/advantage_min": "Smallest advantage.",
    "credit/advantage_max": "Largest advantage.",
    "judge/questions": "Number of questions of the judge task; the shares below are null if it is 0.",
    "judge/good_share": "Share of the questions that are about good actions.",
    "judge/spread_share": "Share of the questions whose answers do not all earn the same.",
    "judge/accuracy": "Mean of judge/accuracy_good and judge/accuracy_bad: one half for a coin.",
    "judge/accuracy_good": "Share of right answers to questions about good actions.",
    "judge/accuracy_bad": "Share of right answers to questions about bad actions.",
    "judge/unread_share": "Share of the judge's answers that say neither good nor bad.",
}
"""Key of metrics.jsonl -> its meaning, one sentence."""
METRIC_KEYS = tuple(METRIC_TEXTS)
