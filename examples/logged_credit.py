"""Credit for episodes that another framework logged: rows of messages become groups, gagpo says which call earned it.

The log here is a list; yours is a file or a table. What matters: which episodes had the same task (a group), what the
agent had read before each call (the state), and what the episode was worth.
"""

import gagpo

LOG = [
    {"task": "refund", "reward": 1.0, "calls": [("order 17?", "look_up(17)"), ("paid twice", "refund(17)")]},
    {"task": "refund", "reward": 0.0, "calls": [("order 17?", "look_up(17)"), ("paid twice", "apologise()")]},
    {"task": "refund", "reward": 0.0, "calls": [("order 17?", "apologise()")]},
]


def groups(log):
    """Returns one group per task. An episode's reward belongs to its last call."""
    found = {}
    for row in log:
        steps = [{"state": read, "action": call, "reward": 0.0} for read, call in row["calls"]]
        steps[-1]["reward"] = row["reward"]
        found.setdefault(row["task"], []).append({"steps": steps})
    return [{"id": task, "episodes": episodes} for task, episodes in found.items()]


def main():
    """Prints each call with its advantage."""
    logged = groups(LOG)
    for group, credit in zip(logged, gagpo.credit(logged), strict=True):
        for episode, advantages in zip(group["episodes"], credit.advantages, strict=True):
            for step, advantage in zip(episode["steps"], advantages, strict=True):
                print(f"{group['id']}  {step['action']:<14} {advantage:+.2f}")


if __name__ == "__main__":
    main()
