"""A tiny Qwen2, steps of random tokens and groups of them: imported by the tests and by the rank processes."""


import msgspec
import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.cold_start.scratch_model import train_tokenizer
from learner.cold_start.sft_data import TokenRow
from learner.trainer import Learner
from services.config.tree import Config
from services.records import Episode, Step, Ticket, Version, VersionSpan


def make_model(folder, *, tied, seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
                         max_position_embeddings=64, initializer_range=0.3, eos_token_id=0, bos_token_id=None)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    train_tokenizer(["take cup 1 from desk 2</action>"]).save_pretrained(folder)
    return folder


def make_step(rng, *, observation="s", reward=0.0, valid=True, step=0):
    prompt, response = (rng.integers(0, 97, rng.integers(*span), dtype=np.int32) for span in ((3, 30), (1, 9)))
    return Step(
        observation=observation, prompt_ids=prompt, response_ids=response,
        logprobs=-rng.random(len(response), dtype=np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=step), start=0, end=len(response))],
        action="go", valid=valid, admissible=True, reward=reward)


def make_groups(seed, *, step=0, count=2, size=4):
    """Makes groups of episodes that share states, some of them won."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(count):
        episodes = []
        for k in range(size):
            won = bool(rng.random() < 0.5)
            steps = [make_step(rng, observation=str(rng.integers(3)), valid=rng.random() > 0.2, step=step)
                     for _ in range(rng.integers(1, 5))]
            steps[-1] = msgspec.structs.replace(steps[-1], reward=10.0 * won)
            ticket = Ticket(group=f"train/{seed * 100 + g:08d}", k=k, size=size, task=f"t/{g}", seed=k, kind="train",
                            temperature=1.0, max_steps=5)
            episodes.append(Episode(ticket=ticket, steps=steps, won=won, end="won" if won else "turns", worker="w",
                                    attempt=1, seconds=0.1, engine="e"))
        groups.append(episodes)
    return groups


def make_config(**learner):
    base = {"groups_per_step": 2, "group_size": 4, "lr": 5e-4, "minibatch_rows": 8, "token_budget": 128, "threads": 1}
    return Config(name="t", steps=4, learner={**base, **learner})


TEACHER = "TEACHER"
"""Stands for the folder of teacher_of in the settings of make_learner."""


def teacher_of(model):
    """Returns the folder of a teacher of the model in a folder, next to it. Makes it if it is not there."""
    folder = model.with_name(f"{model.name}-teacher")
    return folder if folder.exists() else make_model(folder, tied=True, seed=1)


def make_demonstrations(count=7):
    """Makes rows of 4 to 40 tokens."""
    rng = np.random.default_rng(4)
    return [TokenRow(ids=rng.integers(1, 97, int(rng.integers(4, 40)), dtype=np.int32),
                     prompt_tokens=int(rng.integers(1, 4))) for _ in range(count)]


def make_learner(model, rank_group, **learner):
    """Makes a learner, with demonstrations."""
    if learner.get("distill", {}).get("teacher") == TEACHER:
        learner = learner | {"distill": learner["distill"] | {"teacher": teacher_of(model)}}
    return Learner(make_config(**learner), model, rank_group, demonstrations=make_demonstrations())


CASES = {
    f"{ratio}-{over}": {"loss": {"ratio": ratio, "aggregation": over, "kl": 0.1, "entropy": 0.01}}
    for ratio in ("sequence", "token") for over in ("actions", "tokens")
}
"""Settings of `learner` under which no gradient may depend on packing or ranks."""
CASES["decoupled"] = {"loss": {"ratio": "sequence", "corrected_rows": "all", "kl": 0.1, "entropy": 0.01}}
CASES["coupled"] = {"loss": {"ratio": "token", "aggregation": "tokens", "correction": "coupled",
                             "corrected_rows": "all", "kl": 0.0, "entropy": 0.01}}
"""The sampler's random logprobs leave next to no gradient of the policy term. Before the first update the KL term has
none either but for rounding, which would be large beside it."""
CASES["critic"] = {
    **CASES["token-tokens"], "critic": {"lr": 5e-4, "value_clip": 0.5},
    "credit": {"estimator": "ppo", "gamma": 1.0, "lam": 0.9}}
VARIANTS = {
    "in-turn": CASES["sequence-actions"],
    "critic-offloaded": CASES["critic"],
    "lora": {**CASES["token-tokens"], "lr": 5e-3, "lora": {"rank": 4, "alpha": 8.0}},
    "signals": (SIGNALS := {
        **CASES["token-tokens"], "imitation": {"weight": 0.5, "rows": 5, "decay_steps": 4},
        "distill": {"teacher": TEACHER, "weight": 0.3, "credit": 0.5, "decay_steps": 4}}),
    "in-turn-signals": SIGNALS,
}
"""Further settings for several ranks. In-turn: layers are gathered one after another, as in large models. Offloaded:
between steps, and while a checkpoint is made, the states wait in host memory. Signals: demonstrations and a teacher; an
update has so few demonstrations that a rank may have none."""
WRONG = {"skewed": CASES["token-tokens"]}
"""Settings with a fault in rank 1, which the comparison with one rank must find. Skewed: each of its packs counts SKEW
times."""
SKEW = 1.03


def critic_weights(learner):
    """Returns the critic's weights of a single rank, or {} without a critic."""
    critic = learner.stepper.critic
    return {} if critic is None else {
        name: tensor.full_tensor().clone() for name, tensor in critic.trained_model.model.state_dict().items()}


def norms_of(trained_model):
    """Returns a list that gets the gradient norm of each update from now on. Adam hides a factor of the gradient."""
    norms, update = [], trained_model.update

    def noted():
        norms.append(update())
        return norms[-1]

    trained_model.update = noted
    return norms


def weights(learner):
    return {name: tensor.clone() for name, tensor in learner.state_dict_for_sampler()}


class Interrupted(Exception):
    """Stands for the death of all ranks in a cold start."""


def interrupt(after, progress):
    """Interrupts a cold start after so many updates; never if `after` is None."""
    if progress.updates == after:
        raise Interrupted
