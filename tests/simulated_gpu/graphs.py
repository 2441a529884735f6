"""CUDA graphs on the simulated GPU: a capture lists operators, a replay repeats them on the same tensors.

As on a GPU, a capture computes nothing and refuses what makes the host wait, and a replay knows the numbers that Python
had in the capture, and nothing else of Python. The replay of a graph is counted as one operator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten

from seq2seq.inference.cuda_graphs import CudaGraphs

if TYPE_CHECKING:
    from simulation import SimulatedGPU


class Graph:
    """Stand-in for torch.cuda.CUDAGraph.

    operators: functions that repeat an operator. outside: tensors that were made before the capture. made: ids of
    tensors that the capture made; they are kept, so that their ids are not used again. before: tensors that the
    capture has written to, and their numbers before. broken: the operator that CUDA refuses; "": none.
    """

    gpu: SimulatedGPU

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to list operators instead of computing them."""
        assert self.gpu.capture is None and not self.operators
        self.gpu.capture, self.random_state = self, torch.get_rng_state()

    def capture_end(self) -> None:
        """End the list. A capture that a refused operator has broken is an error, also here."""
        self.gpu.capture = None
        torch.set_rng_state(self.random_state)                                  # a capture draws no random numbers
        with no_dispatch():
            for tensor, numbers in reversed(self.before):                       # undo what the capture has computed
                tensor.copy_(numbers)
        self.before.clear()
        if self.broken:
            torch.cuda.default_generators[0].usable = False  # type: ignore[attr-defined]
            raise RuntimeError(f"CUDA error: operation failed due to a previous error during capture: {self.broken}")

    def __init__(self) -> None:
        self.operators: list[Callable[[], None]] = []
        self.outside: dict[int, weakref.ref[Tensor]] = {}
        self.made: dict[int, Any] = {}
        self.before: list[tuple[Tensor, Tensor]] = []
        self.replays, self.broken = 0, ""

    def replay(self) -> None:
        """Run the operators again."""
        assert all(reference() is not None for reference in self.outside.values()), "a tensor of the graph is deleted"
        self.replays += 1
        self.gpu.count_kernel("graph")
        with no_dispatch(), torch.no_grad():
            for repeat in self.operators:
                repeat()

    def add(self, function: Callable[..., Any], inputs: list[Any], found: Any, views: bool = False) -> None:
        """List an operator. inputs: tensors of the GPU that it reads. found: its results. views: True if it has no
        kernel, so that its results need not be computed again."""
        for each in inputs:
            if id(each) not in self.made:
                self.outside[id(each)] = weakref.ref(each)
        results = [each for each in tree_flatten(found)[0] if isinstance(each, Tensor)]
        self.made |= {id(each): each for each in results if all(each is not given for given in inputs)}

        def repeat() -> None:
            again = [each for each in tree_flatten(function())[0] if isinstance(each, Tensor)]
            for result, numbers in zip(results, again, strict=True):
                stored = result.numbers  # type: ignore[attr-defined]
                assert stored.shape == numbers.shape and stored.dtype == numbers.dtype
                if stored is not numbers:                                       # an in-place operator has written it
                    stored.copy_(numbers)

        if not views:
            self.operators.append(repeat)

    def keep_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy the numbers that an operator is about to overwrite."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = kwargs.get(argument.name, args[place] if place < len(args) else None)
                if isinstance(written, Tensor):
                    self.before.append((written, written.clone()))


class Stream:
    """Stand-in for torch.cuda.Stream. All streams are one."""

    device = torch.device("cuda", 0)

    def wait_stream(self, other: Stream) -> None:
        """Do nothing."""


class Generator:
    """Stand-in for the generator of random numbers.

    usable: False after a failed capture. PyTorch's generator (2.11) then refuses to draw random numbers outside of a
    graph, until it gets another state.
    """

    usable = True

    def clone_state(self) -> Generator:
        """Return a generator with the same random numbers."""
        return Generator()

    def graphsafe_set_state(self, other: Generator) -> None:
        """Draw the random numbers of the other generator from now on."""
        self.usable = other.usable


def replacements(gpu: SimulatedGPU) -> dict[str, Any]:
    """Return the stand-ins for names of torch.cuda."""
    def wait_for_device(*_: Any) -> None:
        assert CudaGraphs.capturing.locked(), "during this call, no other thread may capture"

    stream, generator = Stream(), Generator()
    return {"CUDAGraph": type("CUDAGraph", (Graph,), {"gpu": gpu}), "graph_pool_handle": lambda: (0, 1),
            "stream": lambda stream: nullcontext(), "default_generators": (generator,),
            **dict.fromkeys(("synchronize", "empty_cache"), wait_for_device),
            **dict.fromkeys(("Stream", "current_stream", "default_stream"), lambda device=None: stream)}
