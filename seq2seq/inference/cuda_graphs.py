"""CUDA graphs: sequences of GPU kernels with fixed shapes and addresses. One call launches all kernels of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

import torch

from seq2seq import console
from seq2seq.devices import is_out_of_memory

Key = TypeVar("Key", bound=Hashable)


class CudaGraphs:
    """Runs functions as CUDA graphs. On a CPU, functions are called directly. After a failed capture, no more graphs
    are captured, and functions that have none yet are called directly.

    The inputs and outputs of a function must be tensors that exist longer than its graph. The function must not wait
    for the GPU, and must change nothing except its outputs. All graphs allocate temporary tensors in the same memory,
    so only one graph may run at a time.
    """

    capturing = Lock()
    """Lock of captures, one at a time in a process, and of calls that CUDA or PyTorch refuse during any capture."""

    def __init__(self, device: torch.device, work: str = "decoding") -> None:
        """work: what the functions do, for the message after a failed capture."""
        self.enabled, self.work = device.type == "cuda", work
        if self.enabled:
            self.stream, self.memory = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], None], key: Key, graphs: dict[Key, torch.cuda.CUDAGraph | None]) -> None:
        """Run a function: directly in the first call for a key, and as a CUDA graph in all later calls.

        key: key of this function in `graphs`. graphs: captured graphs by key. The second call for a key captures the
        graph and adds it to `graphs`. This method never deletes graphs; the caller may delete them.
        """
        if (graph := graphs.get(key)) is None and self.enabled:
            if key not in graphs:
                # The first call is direct, so that libraries allocate their workspaces before the capture. If it raises
                # an error, the next call is again the first one.
                self._run_on_side_stream(function)
                graphs[key] = None
                return None
            graph = graphs[key] = self._capture(function)
        return function() if graph is None else graph.replay()

    def _run_on_side_stream(self, function: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                function()
        finally:
            current.wait_stream(self.stream)

    def delete(self, *graphs: dict[Key, torch.cuda.CUDAGraph | None]) -> None:
        """Delete all graphs that this object has captured, and their memory. graphs: each as in `run`."""
        with self.capturing:
            torch.cuda.synchronize(self.stream.device)                          # they may still run
        for each in graphs:
            each.clear()
        self.memory = torch.cuda.graph_pool_handle()

    @classmethod
    def free_unused_memory(cls) -> None:
        """Return the memory that PyTorch keeps for later tensors to the driver."""
        with cls.capturing:
            torch.cuda.empty_cache()

    def _capture(self, function: Callable[[], None], again: bool = False) -> torch.cuda.CUDAGraph | None:
        """Capture a function as a graph, without running it. If this fails, print a message and return None.

        again: True in a second attempt.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # `torch.cuda.graph` would first wait for the device and return all unused memory, pinned memory too, to the
            # driver, which would then have to allocate it again for the next batch.
            with self.capturing, torch.cuda.stream(self.stream):
                graph.capture_begin(self.memory, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            # Otherwise, the generator of random numbers would refuse to draw outside of a graph.
            generator = torch.cuda.default_generators[self.stream.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            if is_out_of_memory(error) and not again:
                self.free_unused_memory()                                       # PyTorch cannot do so during a capture
                return self._capture(function, again=True)
            self.enabled = False
            console.warn(f"{self.work} without CUDA graphs, because a step could not be captured: {error}")
            return None
        return graph
