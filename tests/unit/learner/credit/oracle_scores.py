"""The part of the oracle for estimators that compare whole episodes."""

from oracle_steps import at, local, mean, returns, reward, standardise, steps


def row_scores(group, o):
    """Returns S_it and the sample of its statistics: all S_it, or one R_i per episode."""
    total = {i: sum(reward(group, i, t, o) for t in range(len(group[i]["steps"]))) for i in range(len(group))}
    rows = {(i, t): total[i] - local(group, i, t, o) for i, t in steps(group)}
    return rows, list(rows.values()) if o["statistics"] == "rows" else list(total.values())


def scored(group, o, raw, advantages):
    return {"returns": returns(group, o), "values": None, "deltas": None, "raw": raw, "advantages": advantages}


def grpo(group, o):
    rows, sample = row_scores(group, o)
    return scored(group, o, standardise(rows, sample, o, divide=False),
                  standardise(rows, sample, o, divide=o["mode"] == "mean_std_norm"))


def rloo(group, o):
    rows, sample = row_scores(group, o)
    n = len(sample)
    a = {k: s if n == 1 else n / (n - 1) * (s - mean(sample)) for k, s in rows.items()}
    return scored(group, o, a, a)


def reinforce(groups, o, *, baseline):
    out, tokens = [], []
    for group in groups:
        rows, sample = row_scores(group, o)
        raw = standardise(rows, sample, o, divide=False) if baseline else rows
        out.append(scored(group, o, raw, {}))
        tokens += [raw[key] for key in raw for _ in range(at(group, *key)["tokens"])]
    for one in out:
        one["advantages"] = standardise(one["raw"], tokens, o)
    return out


def ppo(group, o):
    rows, _ = row_scores(group, o)
    if o["values"] == "turns":
        rows = {k: reward(group, *k, o) - local(group, *k, o) for k in steps(group)}
    return scored(group, o, rows, rows)
