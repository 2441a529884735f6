"""CUDA graphs. A CUDA graph is a sequence of kernels with fixed shapes and addresses; one call launches all kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

import torch

from seq2seq import console

Key = TypeVar("Key", bound=Hashable)


class CudaGraphs:
    """Runs functions as CUDA graphs. On a CPU, and after a failed capture, functions without graph are called directly.

    The inputs and outputs of a function must be tensors that exist longer than its graph. The function must not wait
    for the GPU, and must change nothing except its outputs. All graphs allocate temporary tensors in the same memory,
    so only one graph may run at a time.
    """

    capturing = Lock()                                                          # one capture at a time in a process

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        if self.enabled:
            self.stream, self.memory = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], None], key: Key, graphs: dict[Key, torch.cuda.CUDAGraph | None]) -> None:
        """Call a function the first time, capture it as a CUDA graph the second time, and run the graph from then on.

        key: key of this function in `graphs`. graphs: the captured graphs. This method adds graphs; only the caller
        deletes them.
        """
        if (graph := graphs.get(key)) is None and self.enabled:
            if key not in graphs:
                # The first call is direct, so that libraries allocate their workspaces before the capture.
                graphs[key] = None
                return self._run_on_side_stream(function)
            graph = graphs[key] = self._capture(function)
        return function() if graph is None else graph.replay()

    def _run_on_side_stream(self, function: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            function()
        current.wait_stream(self.stream)

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture the graph of a function without running it. If the capture fails, print a message and return None."""
        graph = torch.cuda.CUDAGraph()
        try:
            # The outer stream context restores the current stream if `torch.cuda.graph` raises an error at its end.
            with self.capturing, torch.cuda.stream(torch.cuda.current_stream(self.stream.device)), torch.cuda.graph(
                    graph, self.memory, self.stream, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            self.enabled = False
            console.print_message(f"decoding without CUDA graphs, because a step could not be captured: {error}")
            return None
        return graph
