"""A slow second implementation of every estimator, straight from the formulas: sums over pairs of steps, plain floats.

It shares no code, no record and no method with learner/: no recursion, no backward pass, no shared helper.
A group is a list of episodes, an episode {"steps": [{"state", "reward", "invalid", "tokens"}], "cut_in": state | None};
options are a dict. Results are dicts (i, t) -> number.
"""

from fractions import Fraction
from math import log, sqrt, tanh

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
