"""A GPU that is not there, for tests of one process: inside `pretended_cuda()`, tensors on `cuda` are tensors of the
CPU that say that they are on a GPU.

They compute real numbers. As on a GPU, an operation on tensors of both kinds raises RuntimeError, and so does reading
one in numpy. A copy to host memory with non_blocking=True arrives only when the process waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

GPU = torch.device("cuda", 0)
INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})
"""Operations of a tensor on a GPU whose indices may be on the CPU."""
COPIES = frozenset({"copy_", "_to_copy"})


class OnGpu(torch.Tensor):
    """A tensor that says that it is on the GPU. `numbers` holds its numbers."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
            layout=real.layout, device=real.device, requires_grad=real.requires_grad)
        made.numbers = real
        return made

    device = property(lambda _: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda _: True)  # type: ignore[assignment]
    is_cpu = property(lambda _: False)  # type: ignore[assignment]

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGpu({self.numbers})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> OnGpu:
        return OnGpu(inner["numbers"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check(func, args, kwargs)
        real_args, real_kwargs = tree_map_only(OnGpu, lambda tensor: tensor.numbers, (args, kwargs))
        found = func(*real_args, **real_kwargs)
        if func.overloadpacket.__name__ == "copy_" and not isinstance(args[0], OnGpu):
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, tree_map_only(Tensor, OnGpu, found))


def _check(func: Any, args: Any, kwargs: Any) -> None:
    """Raises RuntimeError as CUDA would for tensors on two devices. Numbers on the CPU may meet tensors on a GPU."""
    name = func.overloadpacket.__name__
    if name in COPIES:
        return
    checked = (args[0], args[2:]) if name in INDEXED and isinstance(args[0], OnGpu) else (args, kwargs)
    for tensor in tree_leaves(checked):
        if isinstance(tensor, Tensor) and not isinstance(tensor, OnGpu) and tensor.ndim:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu")


class _Moved(torch.autograd.Function):
    """A copy of a tensor on the other device. Its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.numbers.clone() if isinstance(tensor, OnGpu) else OnGpu(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.numbers if isinstance(gradient, OnGpu) else OnGpu(gradient)


class _PretendedCuda(TorchFunctionMode):
    """Takes calls that name a device, before torch looks for one."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[tuple[Tensor, Tensor]] = []
        """Copies to host memory that have not arrived: where to, and what."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cpu and isinstance(args[0], OnGpu):
            return _Moved.apply(args[0])
        if func is torch.Tensor.to and any(map(_is_gpu, (*args, *kwargs.values()))):
            return _to(*args, **kwargs)
        late = kwargs.get("non_blocking") and func is torch.Tensor.copy_
        if late and isinstance(args[1], OnGpu) and not isinstance(args[0], OnGpu):
            self._coming.append((args[0], args[1].numbers.clone()))
            return args[0]
        if _is_gpu(kwargs.get("device")):
            found = func(*args, **{**kwargs, "device": "cpu"})
            return OnGpu(found) if type(found) is Tensor else found
        return func(*args, **kwargs)

    def synchronize(self, *_: Any) -> None:
        """Waits for the GPU: all copies arrive."""
        for host, tensor in self._coming:
            host.copy_(tensor)
        self._coming.clear()


def _is_gpu(value: Any) -> bool:
    """Whether a value names the GPU, or is a tensor on it."""
    return isinstance(value, OnGpu) or (isinstance(value, str | torch.device) and torch.device(value).type == "cuda")


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Does the work of Tensor.to, for a tensor or a device that is the GPU."""
    given = [*args, kwargs.get("device"), kwargs.get("dtype")]
    given += [value for like in args if isinstance(like, Tensor) for value in (like.device, like.dtype)]
    device = next((value for value in given if isinstance(value, str | torch.device)), tensor.device)
    dtype = next((value for value in given if isinstance(value, torch.dtype)), tensor.dtype)
    other = _is_gpu(device) != isinstance(tensor, OnGpu)
    moved = _Moved.apply(tensor) if other else tensor.clone() if kwargs.get("copy") else tensor
    return moved.to(dtype)  # type: ignore[no-any-return]


@contextmanager
def pretended_cuda(monkeypatch: Any) -> Iterator[_PretendedCuda]:
    """Pretends that there is a GPU in its block. `monkeypatch`: pytest's, for functions that need a driver."""
    mode = _PretendedCuda()
    monkeypatch.setattr(torch.cuda, "synchronize", mode.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("pin_memory", "unpin_memory"):
        monkeypatch.setattr(f"learner.model.host_memory.{name}", lambda *_: None)
    torch.__future__.set_swap_module_params_on_conversion(True)  # as torch does for tensors that FSDP has sharded
    try:
        with mode:
            yield mode
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
