"""Groups as the oracle takes them, random and written as text, their options, and the same as the estimators take
them."""

from hypothesis import strategies as st

from learner.credit.types import CreditStep

MIDDLE = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5, -2.0)
STATES = "ABCDEFGH"

unit = st.sampled_from([0.0, 0.3, 0.8, 0.95, 1.0])
bodies = st.lists(st.binary(min_size=1, max_size=8), min_size=2, max_size=16)
"""One byte a step: three bits of state, two of invalid, three of reward or outcome."""


def build(kind, episodes):
    """kind: fail, win, mixed (the usual: nothing, or 10 at the end) or middle (rewards of either sign anywhere)."""
    out = []
    for body in episodes:
        last = body[-1]
        won = kind == "win" or (kind == "mixed" and last & 0x80 != 0)
        steps = [{"state": STATES[b & 7], "reward": MIDDLE[b >> 5] if kind == "middle" else 0.0,
                  "invalid": b & 0x18 == 0x18, "tokens": 1 + (b * 7) % 5,
                  "action": "xyz"[b % 17 % 3], "admissible": b % 5 > 1,
                  "tag": ("planning", "explore", "reflection", "monitor")[b % 13 % 4]} for b in body]
        if won:
            steps[-1]["reward"] = 10.0
        cut = None if won or not last & 0x20 else (STATES + "?")[last % 9]
        out.append({"steps": steps, "cut_in": cut})
    return out


groups = st.builds(build, st.sampled_from(["mixed", "mixed", "middle", "fail", "win"]), bodies)
options = st.fixed_dictionaries({
    "gamma": unit,
    "lam": unit,
    "penalty": st.sampled_from([0.1, 1.0]),
    "penalty_mode": st.sampled_from(["local", "reward", "none"]),
    "normalize": st.sampled_from(["group", "state", "batch", "none"]),
    "ddof": st.sampled_from([0, 1]),
    "bootstrap": st.booleans(),
    "broadcast": st.sampled_from([0.0, 1.0, 0.5]),
    "mode": st.sampled_from(["mean_std_norm", "mean_norm"]),
    "statistics": st.sampled_from(["rows", "trajectories"]),
    "omega": st.sampled_from([0.0, 1.0, 0.7]),
    "prior": st.sampled_from([0.5, 2.0]),
    "leave_out": st.booleans(),
    "history": st.sampled_from([0, 2]),
    "alpha": st.sampled_from([0.0, 1.0]),
    "values": st.sampled_from(["tokens", "turns"]),
    "decay": st.sampled_from([0.1, 0.5]),
    "shrinkage": st.sampled_from([None, 0.0, 2.0]),
    "gate": st.sampled_from([0.0, 4.0]),
    "spread_floor": st.sampled_from([0.0, 0.5]),
})


def written(*texts):
    """Episodes as text: one letter a state, + at the end for a reward of 10, - for none, ? for a cut in state S.

    The second step of each episode is invalid; actions and tags differ from step to step.
    """
    return [{"cut_in": "S" if text[-1] == "?" else None,
             "steps": [{"state": letter, "reward": 10.0 if text[t + 1] == "+" else 0.0, "invalid": t == 1,
                        "tokens": 1 + t, "action": "xyz"[(t + i) % 3], "admissible": t % 3 != 2,
                        "tag": ("planning", "explore", "reflection", "monitor")[(t + i) % 4]}
                       for t, letter in enumerate(text[:-1])]} for i, text in enumerate(texts)]


def credit_steps(group, scale=1.0):
    """As the estimators take it."""
    return [[CreditStep(state=s["state"], reward=scale * s["reward"], invalid=s["invalid"], tokens=s["tokens"],
                        action=s.get("action"), admissible=s.get("admissible", True), tag=s.get("tag", ""),
                        cut_in=episode["cut_in"] if t == len(episode["steps"]) - 1 else None)
             for t, s in enumerate(episode["steps"])] for episode in group]
