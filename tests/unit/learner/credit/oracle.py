"""A slow second implementation of every estimator, straight from the formulas: sums over pairs of steps, plain floats.

It shares no code, no record and no method with learner/: no recursion, no backward pass, no shared helper.
A group is a list of episodes, an episode {"steps": [{"state", "reward", "invalid", "tokens"}], "cut_in": state | None};
options are a dict. Results are dicts (i, t) -> number.
"""

from oracle_graphs import crbc, g2po, gagpo_graph, graft, graphgpo, graphhca
from oracle_scores import grpo, ppo, reinforce, rloo
from oracle_states import adastep, gagpo_batch, gagpo_boot, gagpo_loo, gigpo, hgpo, rlvmr
from oracle_steps import local, rescale


def credit(name, groups, options):
    """Returns {"returns", "values", "deltas", "raw", "advantages"} for each group of a batch; values: state -> (V,
    count)."""
    return BATCHES[name](groups, options)


def penalty_last(function, groups, o):
    """Normalises, and only then takes off the local penalty."""
    out = [function(group, o) for group in groups]
    everything = [x for one in out for x in one["raw"].values()]
    for group, one in zip(groups, out, strict=True):
        one["advantages"] = {
            k: a - local(group, *k, o) for k, a in rescale(one["raw"], group, o, everything).items()}
    return out


def broadcast_last(function, groups, o):
    """As penalty_last, and then adds GRPO's term."""
    out = penalty_last(function, groups, o)
    for group, one in zip(groups, out, strict=True):
        term = grpo(group, o)["advantages"]
        one["advantages"] = {k: a + o["broadcast"] * term[k] for k, a in one["advantages"].items()}
    return out


def each(function):
    return lambda groups, o: [function(group, o) for group in groups]


BATCHES = {
    "gagpo": gagpo_batch,
    "gagpo_loo": lambda groups, o: broadcast_last(gagpo_loo, groups, o),
    "gagpo_boot": lambda groups, o: penalty_last(gagpo_boot, groups, o),
    "gagpo_graph": lambda groups, o: penalty_last(gagpo_graph, groups, o),
    "gigpo": each(gigpo),
    "rlvmr": each(rlvmr),
    "adastep": each(adastep),
    "hgpo": each(hgpo),
    "g2po": each(g2po),
    "graphgpo": each(graphgpo),
    "graft": lambda groups, o: penalty_last(graft, groups, o),
    "crbc": each(crbc),
    "graphhca": each(graphhca),
    "grpo": each(grpo),
    "rloo": each(rloo),
    "reinforce_pp": lambda groups, o: reinforce(groups, o, baseline=False),
    "reinforce_pp_baseline": lambda groups, o: reinforce(groups, o, baseline=True),
    "ppo": each(ppo),
}
