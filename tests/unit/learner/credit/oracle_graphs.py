"""The part of the oracle for estimators that use the transitions between states."""

from fractions import Fraction
from math import log, sqrt

from oracle_scores import grpo, scored
from oracle_steps import EPS, at, local, mean, nothing_to_compare, returns, reward, same_state, standardise, std, steps


def g2po(group, o):
    episode = grpo(group, o)
    totals = [sum(reward(group, i, t, o) for t in range(len(group[i]["steps"]))) for i in range(len(group))]
    visited = {at(group, *key)["state"] for key in steps(group)}
    value = {s: mean([o["gamma"] ** (len(group[i]["steps"]) - t) * totals[i] for i, t in same_state(group, s)])
             for s in visited}
    led = {(i, t): value[at(group, i, t + 1)["state"]] if t + 1 < len(group[i]["steps"]) else totals[i]
           for i, t in steps(group)}
    x = {key: led[key] - local(group, *key, o) for key in led}
    gain = {key: led[key] - value[at(group, *key)["state"]] for key in led}
    out = {"returns": returns(group, o), "deltas": gain, "raw": {}, "advantages": {},
           "values": {s: (v, len(same_state(group, s))) for s, v in value.items()}}
    divide = o["mode"] == "mean_std_norm"
    edges = [standardise(gain, list(gain.values()), o, divide=d) for d in (False, divide)]
    if nothing_to_compare(group, o):
        edges = [dict.fromkeys(gain, 0.0)] * 2
    for key in steps(group):
        peers = [x[k] for k in same_state(group, at(group, *key)["state"])]
        apart = 0.0 if len(peers) == 1 or max(peers) == min(peers) else x[key] - mean(peers)
        spread = std(peers, o["ddof"]) + EPS if divide and apart else 1.0
        out["raw"][key] = episode["raw"][key] + o["omega"] * (apart + edges[0][key])
        out["advantages"][key] = episode["advantages"][key] + o["omega"] * (apart / spread + edges[1][key])
    return out


def graphgpo(group, o):
    """Distances by relaxing all transitions until nothing changes."""
    episode = grpo(group, o)
    totals = [sum(reward(group, i, t, o) for t in range(len(group[i]["steps"]))) for i in range(len(group))]

    def target(i, t):
        if t + 1 < len(group[i]["steps"]):
            return at(group, i, t + 1)["state"]
        return "goal" if totals[i] > 0 else group[i]["cut_in"]

    near = {"goal": 0}
    for _ in range(sum(len(one["steps"]) for one in group)):
        for key in steps(group):
            s, d = at(group, *key)["state"], near.get(target(*key))
            if d is not None:
                near[s] = min(near.get(s, d + 1), d + 1)
    far = max(near.values()) + 1
    won = max(totals) > 0
    r = {key: max(totals) * o["decay"] ** near.get(target(*key), far) if won else 0.0 for key in steps(group)}
    out = scored(group, o, {}, {})
    for key in steps(group):
        peers = [r[k] for k in same_state(group, at(group, *key)["state"])]
        constant = len(peers) == 1 or max(peers) == min(peers)
        apart = 0.0 if constant else r[key] - mean(peers)
        out["raw"][key] = episode["raw"][key] + apart
        spread = 1.0 if constant or o["mode"] == "mean_norm" else std(peers, o["ddof"]) + EPS
        out["advantages"][key] = episode["advantages"][key] + apart / spread
    return out


def gagpo_graph(group, o):
    """The system of each episode is solved in fractions, by elimination."""
    found, starts = returns(group, o), [returns(group, o)[i, 0] for i in range(len(group))]
    names = sorted({step["state"] for episode in group for step in episode["steps"]})
    out = {"returns": found, "values": None, "deltas": {}, "raw": {}}
    if nothing_to_compare(group, o):
        return out | {"deltas": dict.fromkeys(found, 0.0), "raw": dict.fromkeys(found, 0.0)}
    for i, episode in enumerate(group):
        others = [j for j in range(len(group)) if j != i or not o["leave_out"]]
        m = mean([starts[j] for j in others]) if others else 0.0
        visits = {s: [(j, t) for j, t in steps(group) if j in others and at(group, j, t)["state"] == s] for s in names}
        rows = []
        for s in names:
            row = {name: Fraction(0) for name in names}
            row[s] += len(visits[s]) + Fraction(o["prior"])
            total = Fraction(o["prior"]) * Fraction(m)
            for j, t in visits[s]:
                total += Fraction(reward(group, j, t, o))
                if t + 1 < len(group[j]["steps"]):
                    row[at(group, j, t + 1)["state"]] -= Fraction(o["gamma"])
            rows.append(([row[name] for name in names], total))
        values = dict(zip(names, eliminate(rows), strict=True))
        path = [step["state"] for step in episode["steps"]]
        cut = episode["cut_in"] if o["bootstrap"] else None
        v, lam = [], []
        for s in [*path, *([] if cut is None else [cut])]:
            n = len(visits.get(s, []))
            v.append(float(values[s]) if n else (v[-1] if v else m))
            lam.append(1 - (1 - o["lam"]) * n / (n + o["prior"]))
        v += [0.0] * (len(path) + 1 - len(v))
        for t in range(len(path)):
            out["deltas"][i, t] = reward(group, i, t, o) + o["gamma"] * v[t + 1] - v[t]
        for t in range(len(path)):
            total, factor = 0.0, 1.0
            for u in range(t, len(path)):
                total += factor * out["deltas"][i, u]
                factor *= o["gamma"] * (lam[u + 1] if u + 1 < len(path) else 0.0)
            out["raw"][i, t] = total
    return out


def success_graph(group, o):
    """Returns V(s_t), V(s_{t+1}) and the keys of the steps in each step's state, in fractions by elimination."""
    g = Fraction(o["gamma"])
    names = sorted({step["state"] for episode in group for step in episode["steps"]})
    won = [sum(step["reward"] for step in episode["steps"]) > 0 for episode in group]
    rows = []
    for s in names:
        row, total = {name: Fraction(name == s) for name in names}, Fraction(0)
        visits = same_state(group, s)
        for i, t in visits:
            if t + 1 < len(group[i]["steps"]):
                row[at(group, i, t + 1)["state"]] -= g / len(visits)
            else:
                total += g * won[i] / len(visits)
        rows.append(([row[name] for name in names], total))
    values = dict(zip(names, eliminate(rows), strict=True))
    own = {key: values[at(group, *key)["state"]] for key in steps(group)}
    after = {(i, t): own.get((i, t + 1), Fraction(won[i])) for i, t in own}
    return own, after, {key: same_state(group, at(group, *key)["state"]) for key in own}


def closed(group, o):
    """The parts of a credit that the three estimators share."""
    own, after, peers = success_graph(group, o)
    deltas = {key: float(Fraction(o["gamma"]) * after[key] - own[key]) for key in own}
    return {"returns": returns(group, o), "deltas": deltas, "raw": deltas,
            "values": {at(group, *key)["state"]: (float(own[key]), len(peers[key])) for key in own}}


def graft(group, o):
    return closed(group, o)


def with_episode_term(group, o, term, spread):
    """GRPO's term and ω times the step's term, which is divided by its spread in A."""
    out, episode = closed(group, o), grpo(group, o)
    divide = o["mode"] == "mean_std_norm"
    out["raw"] = {key: o["broadcast"] * episode["raw"][key] + o["omega"] * term[key] for key in term}
    out["advantages"] = {key: o["broadcast"] * episode["advantages"][key]
                         + o["omega"] * term[key] / (spread[key] if divide else 1.0) for key in term}
    return out


def crbc(group, o):
    own, after, peers = success_graph(group, o)
    worth = {}
    for key in own:
        alike = [k for k in peers[key] if at(group, *k)["action"] == at(group, *key)["action"]]
        worth[key] = Fraction(o["gamma"]) * sum(after[k] for k in alike) / len(alike) - own[key]
    term = {key: 0.0 if len({at(group, *k)["action"] for k in peers[key]}) == 1 else float(worth[key]) for key in own}
    spread = {key: max(sqrt(mean([term[k] ** 2 for k in peers[key]])), o["spread_floor"]) or 1.0 for key in own}
    return with_episode_term(group, o, term, spread)


def graphhca(group, o):
    least = Fraction(0.01)
    own, after, peers = success_graph(group, o)
    change = {key: log(max(after[key], least)) - log(max(own[key], least)) for key in own}
    term, spread = {}, {}
    for key in own:
        sample = [change[k] for k in peers[key]]
        equal = len({max(after[k], least) for k in peers[key]}) == 1
        term[key] = 0.0 if equal else change[key] - mean(sample)
        spread[key] = 1.0 if equal else std(sample, o["ddof"]) + EPS
    return with_episode_term(group, o, term, spread)


def eliminate(rows):
    """Gauss-Jordan: [(coefficients, right side)] to the solution."""
    rows = [[*coefficients, right] for coefficients, right in rows]
    for c in range(len(rows)):
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for other in range(len(rows)):
            if other != c and rows[other][c]:
                rows[other] = [x - rows[other][c] * y for x, y in zip(rows[other], rows[c], strict=True)]
    return [row[-1] for row in rows]
