"""Parts that the whole oracle uses: steps, rewards, returns, means and spreads."""

from math import sqrt

EPS = 1e-6


def steps(group):
    return [(i, t) for i, episode in enumerate(group) for t in range(len(episode["steps"]))]


def at(group, i, t):
    return group[i]["steps"][t]


def reward(group, i, t, o):
    step = at(group, i, t)
    return step["reward"] - (o["penalty"] if o["penalty_mode"] == "reward" and step["invalid"] else 0.0)


def local(group, i, t, o):
    return o["penalty"] if o["penalty_mode"] == "local" and at(group, i, t)["invalid"] else 0.0


def returns(group, o):
    """Σ_{u>=t} γ^(u-t) r_u."""
    return {(i, t): sum(o["gamma"] ** (u - t) * reward(group, i, u, o) for u in range(t, len(group[i]["steps"])))
            for i, t in steps(group)}


def nothing_to_compare(group, o):
    """One episode; or all began with one return, and one return followed each state, but for rounding."""
    found = returns(group, o)
    samples = [[found[i, 0] for i in range(len(group))]]
    samples += [[found[key] for key in same_state(group, at(group, *one)["state"])] for one in found]
    return len(group) == 1 or max(max(xs) - min(xs) for xs in samples) <= 1e-12 * max(map(abs, found.values()))


def same_state(group, state):
    return [key for key in steps(group) if at(group, *key)["state"] == state]


def mean(numbers):
    return sum(numbers) / len(numbers)


def std(numbers, ddof):
    return sqrt(sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - ddof))


def rescale(raw, group, o, everything):
    """Returns the numbers on the scale that `normalize` names; `everything`: all numbers of the batch."""
    if o["normalize"] != "state":
        return standardise(raw, {"group": list(raw.values()), "batch": everything, "none": [0.0]}[o["normalize"]], o)
    out = {}
    for key, x in raw.items():
        peers = [raw[k] for k in same_state(group, at(group, *key)["state"])]
        lone = len(peers) == 1 or max(peers) - min(peers) <= 1e-9 * max(1, *map(abs, peers))
        out[key] = 0.0 if lone else (x - mean(peers)) / max(std(peers, o["ddof"]) + EPS, o["spread_floor"])
    return out


def standardise(raw, sample, o, *, divide=True):
    """Returns (x - mean) / (std + ε). A sample of one has mean 0 and std 1; equal numbers are not divided."""
    if len(sample) == 1:
        return dict(raw)
    constant = max(sample) == min(sample)
    centre = sample[0] if constant else mean(sample)
    spread = 1.0 if constant or not divide else std(sample, o["ddof"]) + EPS
    return {key: (x - centre) / spread for key, x in raw.items()}
