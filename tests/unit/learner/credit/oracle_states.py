"""The part of the oracle for estimators that compare the steps of a state."""

from math import tanh

from oracle_scores import grpo, scored
from oracle_steps import EPS, at, local, mean, nothing_to_compare, rescale, returns, reward, same_state, std, steps


def gagpo(group, o):
    found = returns(group, o)
    values = {step["state"]: (mean([found[k] for k in same_state(group, step["state"])]),
                              len(same_state(group, step["state"])))
              for episode in group for step in episode["steps"]}

    def value(i, t):
        if t < len(group[i]["steps"]):
            return values[at(group, i, t)["state"]][0]
        cut = group[i]["cut_in"]
        return values[cut][0] if o["bootstrap"] and cut is not None and cut in values else 0.0

    deltas = {(i, t): reward(group, i, t, o) + o["gamma"] * value(i, t + 1) - value(i, t) for i, t in steps(group)}
    decay = o["gamma"] * o["lam"]
    raw = {(i, t): -local(group, i, t, o) + sum(decay ** (u - t) * deltas[i, u]
                                                for u in range(t, len(group[i]["steps"]))) for i, t in steps(group)}
    return {"returns": found, "values": values, "deltas": deltas, "raw": raw}


def gagpo_batch(groups, o):
    out = [gagpo(group, o) for group in groups]
    everything = [x for one in out for x in one["raw"].values()]
    for group, one in zip(groups, out, strict=True):
        off = dict.fromkeys(one["raw"], 0.0)
        if o["normalize"] == "state":
            off = {k: local(group, *k, o) for k in off}
            one["raw"] = {k: x + off[k] for k, x in one["raw"].items()}
        term = grpo(group, o)["advantages"]
        one["advantages"] = {k: a - off[k] + o["broadcast"] * term[k]
                             for k, a in rescale(one["raw"], group, o, everything).items()}
    return out


def gigpo(group, o):
    found, episode = returns(group, o), grpo(group, o)
    q = {(i, t): found[i, t] - local(group, i, t, o) for i, t in steps(group)}
    out = {"returns": found, "values": {}, "deltas": None, "raw": {}, "advantages": {}}
    for key in steps(group):
        state = at(group, *key)["state"]
        peers = [q[k] for k in same_state(group, state)]
        apart = 0.0 if max(peers) == min(peers) else q[key] - mean(peers)
        spread = std(peers, o["ddof"]) + EPS if o["mode"] == "mean_std_norm" and len(peers) > 1 else 1.0
        out["values"][state] = (mean(peers), len(peers))
        out["raw"][key] = episode["raw"][key] + o["omega"] * apart
        out["advantages"][key] = episode["advantages"][key] + o["omega"] * apart / spread
    return out


def rlvmr(group, o):
    """Each rule is asked of the whole episode again."""
    episode = grpo(group, o)
    total = {i: sum(s["reward"] for s in group[i]["steps"]) for i in range(len(group))}

    def tag(i, t):
        step = at(group, i, t)
        return step["tag"] if step["tag"] != "monitor" and not step["invalid"] else ""

    def earned(i, t):
        mine, before = at(group, i, t), [at(group, i, u) for u in range(t)]
        if tag(i, t) == "planning":
            return total[i] > 0
        if tag(i, t) == "explore":
            return not [s for s in before if s["action"] == mine["action"] and not s["invalid"]]
        if tag(i, t) == "reflection":
            failed = not before or before[-1]["invalid"] or not before[-1]["admissible"]
            return failed and (not before or before[-1]["action"] != mine["action"])
        return False

    out = scored(group, o, {}, {})
    for key in steps(group):
        peers = [float(earned(*k)) for k in steps(group) if tag(*k) == tag(*key)]
        one = len(peers) == 1
        apart = earned(*key) - (0.0 if one else mean(peers))
        spread = 1.0 if one or max(peers) == min(peers) or o["mode"] == "mean_norm" else std(peers, o["ddof"]) + EPS
        out["raw"][key] = episode["raw"][key] + o["omega"] * apart
        out["advantages"][key] = episode["advantages"][key] + o["omega"] * apart / spread
    return out


def adastep(group, o):
    """GiGPO's terms, the second one times 1 - (variance within actions) / variance."""
    episode, whole = grpo(group, o), gigpo(group, {**o, "omega": 1.0})
    q = {(i, t): whole["returns"][i, t] - local(group, i, t, o) for i, t in steps(group)}

    def variance(keys):
        return mean([(q[k] - mean([q[j] for j in keys])) ** 2 for k in keys])

    def weight(state):
        alike = same_state(group, state)
        parts = [[k for k in alike if at(group, *k)["action"] == a] for a in {at(group, *k)["action"] for k in alike}]
        if len(parts) < 2 or min(map(len, parts)) < 2 or len({q[k] for k in alike}) == 1:
            return 1.0
        return 1 - sum(len(part) / len(alike) * variance(part) for part in parts) / variance(alike)

    def gate(state):
        return tanh(len(same_state(group, state)) / o["gate"]) if o["gate"] else 1.0

    def shrunk(key):
        alike = same_state(group, at(group, *key)["state"])
        own = [q[k] for k in alike if at(group, *k)["action"] == at(group, *key)["action"]]
        if len(own) == len(alike):
            return 0.0
        return (sum(own) + o["shrinkage"] * mean([q[k] for k in alike])) / (len(own) + o["shrinkage"])

    if o["shrinkage"] is not None:
        worth = {key: shrunk(key) for key in steps(group)}
        for key in steps(group):
            peers = [worth[k] for k in same_state(group, at(group, *key)["state"])]
            even = max(peers) - min(peers) <= 1e-9 * max(1, *map(abs, peers))
            apart = 0.0 if even else worth[key] - mean(peers)
            spread = std(peers, o["ddof"]) + EPS if apart and o["mode"] == "mean_std_norm" else 1.0
            whole["raw"][key] = episode["raw"][key] + apart
            whole["advantages"][key] = episode["advantages"][key] + apart / spread
    for field in ("raw", "advantages"):
        whole[field] = {key: episode[field][key] + weight(at(group, *key)["state"]) * gate(at(group, *key)["state"])
                        * (x - episode[field][key]) for key, x in whole[field].items()}
    return whole


def hgpo(group, o):
    """Groups are found by comparing the last k states of every pair of steps."""
    found = returns(group, o)
    q = {(i, t): found[i, t] - local(group, i, t, o) for i, t in steps(group)}

    def last(i, t, k):
        return None if k > t + 1 else [at(group, i, u)["state"] for u in range(t - k + 1, t + 1)]

    out = {"returns": found, "values": {}, "deltas": None, "raw": {}, "advantages": {}}
    for key in steps(group):
        state = at(group, *key)["state"]
        alike = same_state(group, state)
        out["values"][state] = (mean([q[k] for k in alike]), len(alike))
        raw, divided = [], []
        for k in range(1, o["history"] + 2):
            mine = last(*key, k)
            peers = [] if mine is None else [q[other] for other in steps(group) if last(*other, k) == mine]
            if len(peers) > 1 and max(peers) > min(peers):
                apart = q[key] - mean(peers)
                weight = (k + 1) ** o["alpha"]
                if abs(apart) > 1e-9:
                    raw.append((weight, apart))
                scaled = apart / (std(peers, 0) + EPS) if o["mode"] == "mean_std_norm" else apart
                if abs(scaled) > 1e-9:
                    divided.append((weight, scaled))
        for name, terms in (("raw", raw), ("advantages", divided)):
            out[name][key] = sum(w * a for w, a in terms) / sum(w for w, _ in terms) if terms else 0.0
    return out


def gagpo_loo(group, o):
    found = returns(group, o)
    out = {"returns": found, "values": None, "deltas": {}, "raw": {}}
    if nothing_to_compare(group, o):
        return out | {"deltas": dict.fromkeys(found, 0.0), "raw": dict.fromkeys(found, 0.0)}
    for i, episode in enumerate(group):
        path = [step["state"] for step in episode["steps"]]
        elsewhere = {s: [found[k] for k in same_state(group, s) if k[0] != i] for s in [*path, episode["cut_in"]]}
        starts = [found[j, 0] for j in range(len(group)) if j != i]
        v = [mean(starts) if starts else 0.0]
        for s in [*path, episode["cut_in"]]:
            xs = elsewhere[s]
            v.append((sum(xs) + o["prior"] * v[-1]) / (len(xs) + o["prior"]) if xs else v[-1])
        v, last = v[1:-1], v[-1]
        v.append(last if o["bootstrap"] and episode["cut_in"] is not None else 0.0)
        for t in range(len(path)):
            out["deltas"][i, t] = reward(group, i, t, o) + o["gamma"] * v[t + 1] - v[t]
        for t in range(len(path)):
            out["raw"][i, t] = sum(
                o["gamma"] ** (u - t) * o["lam"] ** sum(bool(elsewhere[s]) for s in path[t + 1:u + 1])
                * out["deltas"][i, u] for u in range(t, len(path)))
    return out


def gagpo_boot(group, o):
    found = returns(group, o)
    values = {step["state"]: (mean([found[k] for k in same_state(group, step["state"])]),
                              len(same_state(group, step["state"])))
              for episode in group for step in episode["steps"]}
    out = {"returns": found, "values": values, "deltas": {}, "raw": {}}

    def met_by_two(state):
        return len({i for i, _ in same_state(group, state)}) > 1

    def value(i, t):
        if t == len(group[i]["steps"]):
            cut = group[i]["cut_in"]
            elsewhere = any(j != i for j, _ in same_state(group, cut))
            return values[cut][0] if o["bootstrap"] and cut is not None and elsewhere else 0.0
        state = at(group, i, t)["state"]
        return values[state][0] if met_by_two(state) else reward(group, i, t, o) + o["gamma"] * value(i, t + 1)

    for i, t in steps(group):
        out["deltas"][i, t] = reward(group, i, t, o) + o["gamma"] * value(i, t + 1) - value(i, t)
    for i, t in steps(group):
        out["raw"][i, t] = sum((o["gamma"] * o["lam"]) ** (u - t) * out["deltas"][i, u]
                               for u in range(t, len(group[i]["steps"])))
    return out
