"""vLLM's side of an update with a fault: imported by vLLM's process in test_canary.py."""

from rollout.engine.extension import VersionLoader

MUTATIONS = {
    "skipped layer": lambda name: None if ".layers.1." in name else name,
    "stale head": lambda name: None if name == "lm_head.weight" else name,
    "swapped layers": lambda name: name.translate(str.maketrans("01", "10")) if ".layers." in name else name,
}
"""The name under which a tensor is loaded; None: it is not."""


class MutatedLoader(VersionLoader):
    """Has the fault of this name until it is given another one; "" is none."""

    mutation = ""

    def mutate(self, mutation):
        self.mutation = mutation

    def load_received(self, version):
        if self.mutation != "no swap":
            super().load_received(version)

    def _load(self, tensors):
        if self.mutation == "no load":
            return
        renamed = ((MUTATIONS.get(self.mutation, str)(name), tensor) for name, tensor in tensors)
        super()._load((name, tensor) for name, tensor in renamed if name is not None)
