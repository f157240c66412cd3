"""The part of the backend that Triton asks for its target."""

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    """Refuses every kernel that is not interpreted."""

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        raise NotImplementedError("kernels are interpreted")

    def add_stages(self, stages, options, language):
        raise NotImplementedError("kernels are interpreted")

    def load_dialects(self, context):
        raise NotImplementedError("kernels are interpreted")

    def get_module_map(self):
        return {}
