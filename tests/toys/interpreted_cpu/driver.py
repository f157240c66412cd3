"""The part of the backend that says which device is there."""

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Driver(DriverBase):
    """A device that is always there."""

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        raise NotImplementedError("kernels are interpreted")

    def get_current_target(self):
        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_benchmarker(self):
        raise NotImplementedError("kernels are interpreted")

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0
