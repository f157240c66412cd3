"""The five boards: an overview that reads from top to bottom as the data flows, and one page for each part of it.

`python -m deploy.monitor.grafana` writes them as Grafana reads them.
"""

from __future__ import annotations

from deploy.monitor.panels import (
    Board,
    BoardRow,
    Query,
    age,
    gauge,
    mean,
    median_and_tail,
    panel,
    quantile,
    rate,
    series,
    spread,
    total,
)

STEPS_SPAN = "30m"
"""Window for counters that grow once per learner step. It is long enough to hold several steps."""

EPISODES = panel("Episodes", "Finished per second. Refused: somebody else's answer came first. Failed: a fault.",
                 rate("rollout_episodes_total", "outcome"), unit="ops")
TOKENS = panel("Tokens", "Put in and sampled, per second.", rate("rollout_tokens_total", "kind"), unit="ops")
TURN = panel("Answer of the engine", "One turn, its wait for a place in the batch included.",
             *median_and_tail("rollout_turn_seconds"), unit="s")
IN_HAND = panel("Tickets in hand", "Held ones wait for a version; slots are what could be played at once.",
                gauge("rollout_tickets", "state", how="sum"), gauge("rollout_slots", how="sum", name="slots"))
LAG = panel("Version lag", "Learner steps by which each worker's weights are behind the newest.",
            gauge("rollout_version_lag_steps", "worker"))
ENV_STEPS = panel("Steps", "Answered per second.", rate("env_steps_total"), unit="ops")
ENV_STEP = panel("Step", "The engine's own time.", *median_and_tail("env_step_seconds", "environment"), unit="s")
ERRORS = panel("Refusals", "Requests and elements refused per second.", rate("env_errors_total", "type"), unit="ops")
SESSIONS = panel("Sessions", "Live ones on each server, and how many there may be.",
                 gauge("env_sessions", "instance"), gauge("env_sessions_limit", "instance", name="limit"))
PHASES = panel("Where the time goes", "Share of the last half hour that the learner spent in each phase of a step.",
               rate("learner_phase_seconds_total", "phase", span=STEPS_SPAN), unit="percentunit", stacked=True)
LOSS = panel("Loss", "Parts of the last step's loss.", gauge("learner_loss", "part"))
GRADIENT = panel("Gradient norm", "Before clipping.", gauge("learner_gradient_norm"))
DRIFT = panel("Sampler and learner",
              "Absolute difference of their logprobs per token: beyond rounding, they hold other weights.",
              gauge("learner_logprob_difference", "stat"))
SUCCESS = panel("Success", "Of the episodes trained on, and in evaluations.",
                gauge("train_success_ratio", name="training"),
                gauge("eval_success_ratio", where='task_type="all"', name="evaluation"), unit="percentunit")
BY_TYPE = panel("Success by task type", "In the last evaluation.", gauge("eval_success_ratio", "task_type"),
                unit="percentunit")
LENGTH = panel("Episode length", "Turns, in training and in evaluations.",
               gauge("train_episode_length_steps", name="training"),
               gauge("eval_episode_length_steps", name="evaluation"))
RETURN = panel("Return", "Mean of the episodes trained on, as training sees it.", gauge("train_episode_return"))
SHARES = panel("Singletons, active steps and flat groups",
               "Share of steps that are alone in their state, of steps with an advantage other than 0, and of groups "
               "without such a step.",
               gauge("credit_singleton_ratio", name="alone"), gauge("credit_active_ratio", name="active"),
               gauge("credit_flat_groups_ratio", name="flat groups"), unit="percentunit")
ADVANTAGES = panel("Advantages", "Interquartile range.", gauge("credit_advantage_iqr"))
TAIL = panel("Tail of the advantages", "Share beyond 1 or -1.", gauge("credit_advantage_above_one_ratio"),
             unit="percentunit")
CHECKPOINT = panel("Age of the checkpoint", "What a crash would cost.", age("learner_checkpoint_timestamp_seconds"),
                   unit="s")
RETAINED = panel("Bytes held", "Of all episodes in Redis; a checkpoint frees them.", gauge("store_retained_bytes"),
                 unit="bytes")
DROPS = panel("Drops", "Groups in the last half hour, by class of reason.",
              total("groups_dropped_total", "reason", span=STEPS_SPAN))

OVERVIEW = Board(name="overview", title="gagpo", rows=(
    BoardRow(title="Is it well?", panels=(
        panel("Alerts", "Firing now.", Query('count(ALERTS{alertstate="firing", run=~"$run"}) or vector(0)', "alerts"),
              kind="stat", width=4),
        panel("Step", "Learner steps that the weights have taken.", gauge("learner_step"), kind="stat", width=4),
        panel("Evaluation", "Success, last time.", gauge("eval_success_ratio", where='task_type="all"'),
              kind="stat", unit="percentunit", width=4),
        panel("Still for", "Since the last progress of any process.", age("controller_progress_timestamp_seconds"),
              kind="stat", unit="s", width=4),
        panel("Checkpoint", "Age of the newest.", age("learner_checkpoint_timestamp_seconds"), kind="stat", unit="s",
              width=4),
        panel("Targets down", "Endpoints that do not answer.",
              Query('count(up{job="gagpo", part!="driver", run=~"$run"} == 0) or vector(0)', "down"),
              kind="stat", width=4))),
    BoardRow(title="Controller: tickets go out", panels=(
        panel("Doing", "1 for what it does.", gauge("controller_state", "state"), width=6),
        panel("Groups", "Issued, trained and dropped in the last half hour.",
              *(total(f"store_groups_{what}_total", span=STEPS_SPAN, name=what)
                for what in ("issued", "trained", "dropped")), width=6),
        panel("Capacity", "Groups that may still be issued now.", gauge("controller_capacity_groups"), width=6),
        panel("Deaths", "Starts after a death in the last half hour, and processes that die again and again, by role.",
              total("controller_restarts_total", span=STEPS_SPAN),
              gauge("controller_members", "role", where='state="sick"'), width=6),
        panel("Processes", "How many should run, and how many there are in each state.",
              gauge("controller_wanted_members", "role", name="wanted"),
              gauge("controller_members", "role", "state"), width=24))),
    BoardRow(title="Store: tickets wait, groups wait", panels=(
        panel("Tickets", "Not played yet: new ones, and those in a worker's hands.", gauge("store_tickets", "state"),
              width=6),
        panel("Oldest ticket", "Its age.", gauge("store_oldest_ticket_age_seconds"), unit="s", width=6),
        panel("Groups ready", "Finished, and not read yet.", gauge("store_groups_ready", "kind"), width=6),
        panel("Bytes held", RETAINED.help, *RETAINED.queries, unit="bytes", width=6))),
    BoardRow(title="Rollout: episodes are played", panels=(EPISODES, TOKENS, TURN, IN_HAND, LAG, DROPS)),
    BoardRow(title="Environments: steps are answered", panels=(ENV_STEPS, ENV_STEP, ERRORS)),
    BoardRow(title="Learner: weights move", panels=(PHASES, LOSS, GRADIENT, DRIFT, SHARES, ADVANTAGES)),
    BoardRow(title="Results", panels=(SUCCESS, BY_TYPE, LENGTH)),
))

ENVIRONMENTS = Board(name="environments", title="gagpo: environments", rows=(
    BoardRow(title="Work", panels=(
        ENV_STEPS, panel("Resets", "Resets answered per second.", rate("env_resets_total"), unit="ops"),
        panel("Requests", "Answered per second: each carries many steps.",
              rate("env_request_seconds_count", "route"), unit="ops"))),
    BoardRow(title="Latency", panels=(
        ENV_STEP,
        panel("Reset", "Loading included where a task is new.", *median_and_tail("env_reset_seconds", "environment"),
              unit="s"),
        panel("Whole requests", "Reading, all their elements, and encoding.",
              *median_and_tail("env_request_seconds", "route"), unit="s"),
        panel("Steps, all", "How many took how long.", spread("env_step_seconds"), kind="heatmap", unit="s", width=12),
        panel("Replays", "Mean of a step that had to rebuild its session first.",
              mean("env_replay_seconds", "environment", span=STEPS_SPAN), unit="s", width=12))),
    BoardRow(title="Sessions", panels=(
        SESSIONS,
        panel("Rebuilt", "Sessions that a server did not have, in the last half hour.",
              total("env_replays_total", "instance", span=STEPS_SPAN)),
        panel("Lapsed", "Sessions dropped as idle, or for memory, in the last half hour.",
              total("env_sessions_expired_total", "instance", span=STEPS_SPAN)))),
    BoardRow(title="Health", panels=(
        ERRORS,
        panel("Memory", "Resident, engines' processes included.", gauge("env_resident_memory_bytes", "instance"),
              unit="bytes"),
        panel("Memory slope", "Bytes per second over half an hour; a leak stays above 0.",
              Query(f"deriv({series('env_resident_memory_bytes')}[{STEPS_SPAN}])", "{{run}} {{instance}}"),
              unit="bytes"))),
))

ROLLOUT = Board(name="rollout", title="gagpo: rollout", rows=(
    BoardRow(title="Episodes", panels=(
        EPISODES,
        panel("Ends", "How finished episodes ended, per second.", rate("rollout_episode_ends_total", "end"),
              unit="ops"),
        panel("Turns", "Of finished episodes, per second.", rate("rollout_env_steps_total"), unit="ops"),
        panel("Time of an episode", "From its start to its end.", *median_and_tail("rollout_episode_seconds"),
              unit="s"),
        panel("Length", "Turns of episodes: how many had how many.", spread("rollout_episode_length_steps"),
              kind="heatmap"),
        panel("Given back", "Tickets claimed anew, and sessions rebuilt, in the last half hour.",
              total("rollout_redeliveries_total", span=STEPS_SPAN, name="tickets"),
              total("rollout_replays_total", span=STEPS_SPAN, name="sessions")))),
    BoardRow(title="Engine", panels=(
        TOKENS, TURN,
        panel("Answers, all", "How many took how long.", spread("rollout_turn_seconds"), kind="heatmap", unit="s"),
        panel("KV cache in use", "Share of its blocks that running requests hold; at 1 they wait for each other.",
              gauge("rollout_kv_used_ratio", "worker"), unit="percentunit"))),
    BoardRow(title="Tickets", panels=(
        IN_HAND,
        panel("In hand by worker", "Episodes that each plays.",
              gauge("rollout_tickets", "worker", where='state="playing"')),
        panel("Wait of a ticket", "For a worker with weights that may play it.",
              *median_and_tail("rollout_queue_seconds"), unit="s"))),
    BoardRow(title="Weights", panels=(
        LAG, panel("Version", "Learner step of the weights that each worker holds.",
                   gauge("rollout_version_step", "worker")),
        panel("Pause of an update", "Of the samplers, in the last half hour.",
              quantile(0.5, "rollout_update_seconds", span=STEPS_SPAN),
              quantile(0.95, "rollout_update_seconds", span=STEPS_SPAN), unit="s"))),
))

LEARNER = Board(name="learner", title="gagpo: learner", rows=(
    BoardRow(title="Pace", panels=(
        panel("Steps", "That the weights have taken.", gauge("learner_step")), PHASES,
        panel("Tokens", "Of the groups trained on, in the last half hour.",
              total("learner_tokens_total", "kind", span=STEPS_SPAN)),
        panel("FLOP utilisation", "Of a step's forward and backward passes against the peak of the GPUs; none on CPUs.",
              gauge("learner_flop_utilization_ratio"), unit="percentunit"),
        CHECKPOINT, RETAINED)),
    BoardRow(title="Optimisation", panels=(
        LOSS, GRADIENT,
        panel("Clipped", "Share of ratios outside the clip range.", gauge("learner_clipped_ratio"),
              unit="percentunit"),
        panel("Importance ratio", "Mean of new over old probability.", gauge("learner_importance_ratio_mean")),
        panel("KL and entropy", "The loss's estimates, before their weights.",
              gauge("learner_loss", "part", where='part=~"kl|entropy"')),
        DRIFT)),
    BoardRow(title="Data", panels=(
        panel("Age", "Of episodes at their consumption, in learner steps.", gauge("learner_staleness_steps", "stat")),
        DROPS,
        panel("Ill-formed, inadmissible, cut", "Share of the turns trained on.", gauge("train_steps_ratio", "kind"),
              unit="percentunit"),
        panel("Tokens of a turn", "Of the turns trained on: prompts and answers.",
              gauge("train_turn_tokens", "part", "stat")))),
    BoardRow(title="Results", panels=(SUCCESS, RETURN, LENGTH)),
))

CREDIT = Board(name="credit", title="gagpo: credit", rows=(
    BoardRow(title="Who shares a state", panels=(
        panel("Sizes of states", "Steps of the last half hour by how many share their state within the group.",
              spread("credit_state_group_size", span=STEPS_SPAN), kind="heatmap", width=12),
        panel("Mean size", "Of the state that a step is in.",
              mean("credit_state_group_size", span=STEPS_SPAN), width=12))),
    BoardRow(title="What is taught", panels=(SHARES, ADVANTAGES, TAIL)),
    BoardRow(title="What it is taught by", panels=(SUCCESS, RETURN, LENGTH)),
))

BOARDS = (OVERVIEW, ENVIRONMENTS, ROLLOUT, LEARNER, CREDIT)
