"""A simulated GPU: tensors that say they are on `cuda:0`, hold their numbers in CPU memory and are computed there.

Trainings and searches run through their branches for CUDA, with numbers that can be compared with the CPU's. Every
operator passes through `SimulatedGPU`, which

- refuses operators that mix tensors of the CPU and of the GPU, as CUDA does,
- lists what makes the host wait for the GPU, with the line of seq2seq that caused it,
- counts operators, which are about as many kernel launches, and collectives between ranks,
- runs Triton's kernels in Triton's interpreter, tensors in 16 bits as fp32 that is rounded at the end of the kernel,
- captures and replays CUDA graphs (graphs.py).

It needs the device guard (device_guard.py), and so a process of its own. It has no streams, races, memory limit, NCCL
or real kernels: what depends on them is not tested.

    with SimulatedGPU() as gpu:
        train(recipe, run)
    print(gpu.record)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import graphs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _foreach_utils
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

import seq2seq
from seq2seq.model import loss

try:
    from triton.runtime.interpreter import GridExecutor, InterpretedFunction
except ImportError:                                                             # the GPU then has no Triton
    GridExecutor = InterpretedFunction = None

GPU = torch.device("cuda", 0)
PACKAGE = str(Path(seq2seq.__file__).parent)
MEMORY = 80 * 2**30

aten = torch.ops.aten
# The sizes or Python values of these operators' results depend on numbers that the GPU has yet to compute.
WAITING_FOR_NUMBERS = {
    aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default,
    aten.masked_select.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
    aten.bincount.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# These take lengths from the CPU beside data on the GPU.
PACKING = {aten._pack_padded_sequence.default, aten._pack_padded_sequence_backward.default,
           aten._pad_packed_sequence.default}
# In deterministic mode their CUDA versions sort, and copy sizes and strides from the host. With a number as the source
# instead of a tensor they do not.
SCATTERING = {aten.scatter.src, aten.scatter_.src, aten.scatter_add.default, aten.scatter_add_.default}
WITHOUT_KERNEL = {
    aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten._unsafe_view.default,
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.set_.source_Tensor}


class DeviceMismatch(RuntimeError):
    """Tensors of the CPU and of the GPU in one operator."""


class GpuTensor(Tensor):
    """Tensor that says it is on `cuda:0`. numbers: the same tensor on the CPU."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> GpuTensor:
        assert not isinstance(numbers, GpuTensor)
        made: GpuTensor = Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, layout=numbers.layout, device=GPU)
        made.numbers = numbers
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"GpuTensor({self.numbers})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copied = self.detach().clone()
            memo[id(self)] = (nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter)
                              else copied.requires_grad_(self.requires_grad))
        return memo[id(self)]

    # With these, `nn.Module.to` swaps the contents of a parameter, so that tied weights stay tied.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> GpuTensor:
        return GpuTensor(inner["numbers"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert SimulatedGPU.running is not None, "a tensor is used after the end of its simulated GPU"
        return SimulatedGPU.running.run(func, args, kwargs or {})


@dataclass
class Record:
    """Counts of waits, operators and collectives of a simulated GPU.

    waits: by reason and place ("search/beam.py:192", of the innermost frame in seq2seq). operators, collectives: by
    name; views and empty tensors are not counted.
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Count from zero again."""
        for counter in (self.waits, self.operators, self.collectives):
            counter.clear()

    @property
    def totals(self) -> dict[str, int]:
        """Number of waits, operators and collectives."""
        return {"waits": self.waits.total(), "operators": self.operators.total(),
                "collectives": self.collectives.total()}

    def __str__(self) -> str:
        waits = [f"{count:6} {reason} at {place}" for (reason, place), count in self.waits.most_common()]
        return "\n".join([", ".join(f"{count} {name}" for name, count in self.totals.items()), *waits])


class SimulatedGPU(TorchDispatchMode):
    """Context in which `cuda:0` exists; see the module. Only one at a time."""

    running: SimulatedGPU | None = None

    def __init__(self, capability: tuple[int, int] = (9, 0), run_kernels: bool = True) -> None:
        """run_kernels: False to count Triton's kernels without running them, which takes seconds for large tensors."""
        super().__init__()
        self.record, self.capability, self.run_kernels = Record(), capability, run_kernels
        self.capture: graphs.Graph | None = None
        self._depth = 0
        self._patches = ExitStack()

    def __enter__(self) -> SimulatedGPU:
        self._depth += 1
        if self._depth == 1:
            assert SimulatedGPU.running is None, "there is one simulated GPU at a time"
            SimulatedGPU.running = self
            self._enter_patches()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if not self._depth:
            self._patches.close()
            SimulatedGPU.running = None

    def _enter_patches(self) -> None:
        torch._C._ensureCUDADeviceGuardSet()                                    # else autograd knows no device cuda
        for place, name, replacement in self._replacements():
            self._patches.enter_context(mock.patch.object(place, name, replacement))
        # torch.tensor(…, device="cuda") then makes a tensor on the CPU, and copies it in an operator that is seen here.
        self._patches.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        # The backward pass runs on the calling thread, where this mode is active.
        self._patches.enter_context(torch.autograd.set_multithreading_enabled(False))

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        for name, value in {"is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
                            "get_device_capability": self.capability, "get_device_name": "simulated GPU",
                            "mem_get_info": (MEMORY, MEMORY),
                            "get_device_properties": SimpleNamespace(total_memory=MEMORY),
                            "max_memory_allocated": 0, "max_memory_reserved": 0,
                            "reset_peak_memory_stats": None, "manual_seed_all": None,
                            "set_device": None,
                            "_exchange_device": 0, "_maybe_exchange_device": 0}.items():
            yield torch.cuda, name, lambda *_, value=value, **__: value
        for name, value in graphs.replacements(self).items():
            yield torch.cuda, name, value
        yield torch.version, "cuda", "13.0"
        if self.run_kernels:                                                    # one program a row: the slowest to run
            yield loss, "gradient_function", lambda *_: loss.overwrite_with_gradient
        if InterpretedFunction is not None:
            yield InterpretedFunction, "run", lambda kernel, *args, grid, warmup=False, **named: self.run_triton(
                kernel, grid, args, named)
        yield _foreach_utils, "_foreach_supported_types", [*_foreach_utils._foreach_supported_types, GpuTensor,
                                                           nn.Parameter]
        attention = F.scaled_dot_product_attention

        def attention_on_any_device(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                    **options: Any) -> Tensor:
            if not isinstance(query, GpuTensor):
                return attention(query, key, value, attn_mask, **options)
            assert attn_mask is None or attn_mask.dtype in (torch.bool, query.dtype), \
                f"scaled_dot_product_attention: a mask in {attn_mask.dtype} and queries in {query.dtype}"
            return _Attention.apply(lambda *inputs: attention(*inputs, **options), attn_mask, query, key, value)

        yield F, "scaled_dot_product_attention", attention_on_any_device

        # PyTorch makes no views of wrapped tensors in inference mode; here it turns off gradients only.
        def enter(mode: Any) -> None:
            mode.before_simulation = torch.is_grad_enabled()
            torch._C._set_grad_enabled(mode.before_simulation and not mode.mode)

        yield torch.inference_mode, "__enter__", enter
        yield torch.inference_mode, "__exit__", lambda mode, *_: torch._C._set_grad_enabled(mode.before_simulation)

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on the CPU or on the simulated GPU, wherever its arguments lie."""
        if func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        flat, structure = tree_flatten((args, kwargs))
        on_gpu = [each for each in flat if isinstance(each, GpuTensor)]
        on_cpu = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, GpuTensor)]
        device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if not on_gpu and (device is None or device.type != "cuda"):
            return _on_cpu(func, args, kwargs)
        self._check_devices(func, args, on_gpu, on_cpu, device)
        self._count(func)
        if (torch.Tag.nondeterministic_seeded in func.tags and self.capture is None
                and not torch.cuda.default_generators[0].usable):
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        if reason := _reason_to_wait(func, args, kwargs, on_gpu, on_cpu, device):
            if self.capture is not None:
                self.capture.broken = reason
                raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {reason}")
            self.record.waits[reason, _place()] += 1
        if func in OWN_KERNELS:
            kernel = partial(OWN_KERNELS[func], *map(_numbers, args), **kwargs)
            made = _on_gpu(kernel())
            if self.capture is not None:
                self.capture.add(kernel, on_gpu, made)
            return made
        plain = [_numbers(each) for each in flat]
        plain_args, plain_kwargs = tree_unflatten(plain, structure)
        if device is not None:
            plain_kwargs["device"] = torch.device("cpu")
            plain_kwargs.pop("pin_memory", None)
        if self.capture is not None:
            self.capture.keep_numbers(func, plain_args, plain_kwargs)
        found = func(*plain_args, **plain_kwargs)
        if torch.Tag.inplace_view in func.tags:
            _repeat_on_wrapper(func, args, kwargs)
        if device is not None and device.type == "cpu":                         # a copy to the host, never the original
            return found.clone() if any(found is each for each in plain) else found
        wrappers = {id(each.numbers): each for each in on_gpu}                  # of in-place operators and outputs
        cpu_outputs = {id(each) for each in on_cpu}

        def wrapped(result: Tensor) -> Tensor:
            if id(result) in cpu_outputs:
                return result
            if (same := wrappers.get(id(result))) is not None:
                assert same.shape == result.shape, f"{func} changes the shape of a tensor that hides it"
                return same
            return GpuTensor(result)

        if func is aten._pack_padded_sequence.default:                          # batch sizes stay on the CPU
            return GpuTensor(found[0]), found[1]
        results = tree_map_only(Tensor, wrapped, found)
        if self.capture is not None:
            self.capture.add(partial(func, *plain_args, **plain_kwargs), on_gpu, results,
                             views=func in WITHOUT_KERNEL or func.is_view)
        return results

    def run_triton(self, kernel: Any, grid: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Run a kernel in Triton's interpreter."""
        tensors = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        on_gpu, on_cpu = _by_device(*tensors)
        if on_cpu:
            raise DeviceMismatch(f"{kernel.__name__} at {_place()} reads tensors of the CPU")
        assert grid[0] > 0 and all(0 < size < 2**16 for size in grid[1:]), f"{kernel.__name__}: a grid of {grid}"
        self.count_kernel(kernel.__name__)
        plain, plain_named = [_numbers(each) for each in args], {name: _numbers(each) for name, each in named.items()}
        if self.capture is not None:
            self.capture.before += [(each.numbers, each.numbers.clone()) for each in on_gpu]
        runs = self.run_kernels or kernel.__name__ == "_add_one"                # which asks whether kernels run
        run = partial(_interpret if runs else _do_nothing, kernel, grid, plain, plain_named)
        with no_dispatch():
            run()
        if self.capture is not None:
            self.capture.add(run, on_gpu, None)

    def count_kernel(self, name: str) -> None:
        """Count an operator that runs as one kernel, if it is not only captured."""
        if self.capture is None:
            self.record.operators[name] += 1

    def _count(self, func: Any) -> None:
        if func.namespace == "c10d":
            self.record.collectives[func.__name__] += 1
        elif func not in WITHOUT_KERNEL and not func.is_view:
            self.count_kernel(str(func))

    def _check_devices(self, func: Any, args: Any, on_gpu: list[GpuTensor], on_cpu: list[Tensor],
                       device: torch.device | None) -> None:
        if device is not None or func is aten.copy_.default or func in PACKING:
            return
        # Indices may lie on the CPU, if the indexed tensor does not. A tensor without dimensions counts as a number.
        allowed = [index for index in args[1] if index is not None] if func in INDEXING and isinstance(
            args[0], GpuTensor) else []
        wrong = [each for each in on_cpu if each.dim() and all(each is not index for index in allowed)]
        if on_gpu and wrong:
            raise DeviceMismatch(f"{func} at {_place()} mixes tensors of cuda:0 {[tuple(t.shape) for t in on_gpu]} and "
                                 f"of the CPU {[tuple(t.shape) for t in wrong]}")


def _reason_to_wait(func: Any, args: Any, kwargs: dict[str, Any], on_gpu: list[GpuTensor], on_cpu: list[Tensor],
                    device: torch.device | None) -> str | None:
    """Return why CUDA would let the host wait in this operator; None if it would not."""
    name: str = func.__name__.split(".")[0]
    if func is aten._to_copy.default:
        if on_cpu:
            return _copy_waits("copy to the GPU", on_cpu[0], kwargs.get("non_blocking", False))
        leaves = device is not None and device.type == "cpu"
        return "copy to the host" if leaves and not kwargs.get("non_blocking") else None
    if func is aten.copy_.default and on_cpu:
        if not isinstance(args[0], GpuTensor) and not on_gpu:
            return None
        non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
        kind = "copy to the GPU" if isinstance(args[0], GpuTensor) else "copy to the host"
        return _copy_waits(kind, on_cpu[0], non_blocking)
    if func in WAITING_FOR_NUMBERS:
        return name
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        return "repeat_interleave without output_size"
    if func in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "boolean index"
        if not all(isinstance(index, GpuTensor) for index in indices):
            return "index on the host"
    if (func in SCATTERING and torch.are_deterministic_algorithms_enabled() and args[0].dim() > 1
            and args[0].is_floating_point()):
        return f"deterministic {name}"
    return None


def _repeat_on_wrapper(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Repeat an operator such as `transpose_`, which changes shape and strides only, on the wrapper of the numbers."""
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _copy_waits(kind: str, on_cpu: Tensor, non_blocking: bool) -> str | None:
    if not non_blocking:
        return kind
    return None if _is_pinned(on_cpu) else f"{kind} from memory that is not pinned"


def _place() -> str:
    """Return file and line of the innermost frame in seq2seq."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename[len(PACKAGE) + 1:]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of seq2seq"


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, GpuTensor) else value


def _on_gpu(values: tuple[Tensor | None, ...]) -> tuple[GpuTensor | None, ...]:
    return tuple(None if value is None else GpuTensor(value) for value in values)


def _do_nothing(*_: Any) -> None:
    """Stand for a kernel that is only counted."""


def _interpret(kernel: Any, grid: Any, args: list[Any], named: dict[str, Any]) -> None:
    """Run a kernel in the interpreter, which cannot multiply matrices of bf16 and does not round to it."""
    wide: dict[int, tuple[Tensor, Tensor]] = {}                                 # by storage: numbers, and as fp32

    def widened(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in (torch.bfloat16, torch.float16):
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in wide:
            whole = torch.empty(0, dtype=value.dtype).set_(storage)
            wide[storage.data_ptr()] = whole, whole.float()
        return wide[storage.data_ptr()][1].as_strided(value.shape, value.stride(), value.storage_offset())

    executor = GridExecutor(kernel.rewrite(), kernel.arg_names, grid, kernel.pre_run_hooks)
    executor(*map(widened, args), **{name: widened(value) for name, value in named.items()})
    for numbers, precise in wide.values():
        numbers.copy_(precise)


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "pinned_by_simulation", False)


def _on_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is aten.is_pinned.default:
        return _is_pinned(args[0])
    if func is aten._pin_memory.default:
        pinned = args[0].clone()
        pinned.pinned_by_simulation = True
        return pinned
    return func(*args, **kwargs)


class _Attention(torch.autograd.Function):
    """scaled_dot_product_attention as one kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, attention: Callable[..., Tensor], mask: Tensor | None, *inputs: Tensor) -> Tensor:
        assert SimulatedGPU.running is not None
        SimulatedGPU.running._check_devices("scaled_dot_product_attention", (), *_by_device(mask, *inputs), None)
        SimulatedGPU.running.count_kernel("scaled_dot_product_attention")
        ctx.save_for_backward(*inputs)
        ctx.attention, ctx.mask = attention, _numbers(mask)
        attended = GpuTensor(attention(*map(_numbers, inputs), ctx.mask))
        if (capture := SimulatedGPU.running.capture) is not None:
            capture.add(partial(attention, *map(_numbers, inputs), ctx.mask), _by_device(mask, *inputs)[0], attended)
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        assert SimulatedGPU.running is not None
        SimulatedGPU.running.count_kernel("scaled_dot_product_attention_backward")
        inputs = [_numbers(each).detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            attended = ctx.attention(*inputs, ctx.mask)
        return None, None, *_on_gpu(torch.autograd.grad(attended, inputs, _numbers(gradient)))


def _by_device(*tensors: Tensor | None) -> tuple[list[GpuTensor], list[Tensor]]:
    given = [each for each in tensors if each is not None]
    return ([each for each in given if isinstance(each, GpuTensor)],
            [each for each in given if not isinstance(each, GpuTensor)])


# Operators that PyTorch has for CUDA only


def _gru_cell(entering: Tensor, recurrent: Tensor, state: Tensor, input_bias: Tensor | None = None,
              hidden_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the new state, and what the backward pass needs: reset, update, new, state, recurrent part of new."""
    reset, update, new = (entering if input_bias is None else entering + input_bias).chunk(3, 1)
    of_reset, of_update, of_new = (recurrent if hidden_bias is None else recurrent + hidden_bias).chunk(3, 1)
    reset, update = (reset + of_reset).sigmoid(), (update + of_update).sigmoid()
    new = (new + reset * of_new).tanh()
    return new + update * (state - new), torch.cat([reset, update, new, state, of_new], 1)


def _gru_cell_backward(gradient: Tensor, workspace: Tensor, biased: bool) -> tuple[Tensor | None, ...]:
    reset, update, new, state, of_new = workspace.chunk(5, 1)
    to_new = gradient * (1 - update) * (1 - new.square())
    to_reset = to_new * of_new * reset * (1 - reset)
    to_update = gradient * (state - new) * update * (1 - update)
    entering, recurrent = torch.cat([to_reset, to_update, to_new], 1), torch.cat([to_reset, to_update, to_new * reset],
                                                                                 1)
    biases = (entering.sum(0), recurrent.sum(0)) if biased else (None, None)
    return entering, recurrent, gradient * update, *biases


def _lstm_cell(entering: Tensor, recurrent: Tensor, cell: Tensor, input_bias: Tensor | None = None,
               hidden_bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new state, the new cell, and the gates that the backward pass needs."""
    gates = entering + recurrent
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    after = forget * cell + enter * new
    return leave * after.tanh(), after, torch.cat([enter, forget, new, leave], 1)


def _lstm_cell_backward(of_state: Tensor | None, of_cell: Tensor | None, before: Tensor, after: Tensor,
                        gates: Tensor, biased: bool) -> tuple[Tensor | None, ...]:
    enter, forget, new, leave = gates.chunk(4, 1)
    of_state = torch.zeros_like(after) if of_state is None else of_state
    of_cell = torch.zeros_like(after) if of_cell is None else of_cell
    squashed = after.tanh()
    of_cell = of_cell + of_state * leave * (1 - squashed.square())
    of_gates = torch.cat([of_cell * new * enter * (1 - enter), of_cell * before * forget * (1 - forget),
                          of_cell * enter * (1 - new.square()), of_state * squashed * leave * (1 - leave)], 1)
    return of_gates, of_cell * forget, of_gates.sum(0) if biased else None


OWN_KERNELS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_gru_cell.default: _gru_cell, aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
}
