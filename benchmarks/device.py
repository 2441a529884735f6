"""Measure a GPU: rates of the hardware, a training step with its profile, reproducibility, and beam search.

    python -m benchmarks.device                                # training, checks and decoding of the base model
    python -m benchmarks.device decoding                       # one part
    python -m benchmarks.device recipe --data DIRECTORY        # Multi30k from text to BLEU
    python -m benchmarks.device --tiny                         # quick test of this script, also on a CPU

Weights and token ids are random, so no text is needed. The lengths of the sentences are those of image captions (mean
14 tokens) or news (mean 30). A measurement that fails prints its error, and the next one runs. The results are also
written to device.json after each measurement.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import RECIPES, ROOT
from benchmarks.measuring import environment
from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape
from seq2seq.data.epoch_plan import batches_in_order, plan_epoch
from seq2seq.devices import choose_device, describe
from seq2seq.inference.static import StaticEngine
from seq2seq.model import loss as loss_module
from seq2seq.model.layers import Dropout
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import TrainingSection
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.training.run import make_deterministic
from seq2seq.training.step import TrainingStep

PEAK = 790e12
"""Rate of dense bf16 matrix products that an H100 or H200 reaches, in operations a second."""
MAX_LENGTH = 251
KERNELS = {
    "attention": ("flash", "fmha", "_forward", "_backward_query", "_backward_key"),
    "matrix products": ("gemm", "cutlass", "nvjet", "cublas", "splitK", "xmma"), "loss": ("_overwrite_row",),
    "norm": ("layer_norm", "GammaBeta"), "dropout": ("dropout",),
    "Adam, lists": ("multi_tensor", "FusedAdam", "foreach"),
    "embedding": ("embedding", "radix", "sort", "indexSelect", "index_select"), "reductions": ("reduce_kernel",),
    "copies, fills": ("Memcpy", "Memset", "copy", "fill", "CatArray"), "elementwise": ("elementwise",),
}
"""Classes of the profile, with parts of the names of their kernels. The first class that fits counts."""


@dataclasses.dataclass
class Bench:
    """Sizes of what is measured, and the results so far.

    tokens: target tokens of a training step. sentences: number of sentences to translate.
    """

    device: torch.device
    d_model: int = 512
    layers: int = 6
    num_heads: int = 8
    feed_forward: int = 2048
    vocab_size: int = 32_000
    tokens: int = 25_000
    small_tokens: int = 2_048
    sentences: int = 3_003
    steps: int = 12
    results: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.type == "cuda"

    def synchronise(self) -> None:
        """Wait until the GPU has finished all operations."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def model(self) -> Transformer:
        """Return a model with random weights, always the same."""
        torch.manual_seed(1)
        return Transformer(source_vocab_size=self.vocab_size, target_vocab_size=self.vocab_size, d_model=self.d_model,
                           encoder_layers=self.layers, decoder_layers=self.layers, num_heads=self.num_heads,
                           feed_forward=self.feed_forward, dropout=0.1).to(self.device)

    def corpus(self, kind: str, pairs: int) -> EncodedCorpus:
        """Return pairs of random tokens with the lengths of "captions" or "news"."""
        random = np.random.default_rng(1)
        if kind == "captions":
            target = np.clip(np.round(random.normal(14, 4.2, pairs)), 4, 44)
        else:
            target = np.clip(np.round(random.lognormal(np.log(25), 0.6, pairs)), 3, MAX_LENGTH - 1)
        source = np.clip(np.round(target * random.normal(1, 0.12, pairs)), 3, MAX_LENGTH - 1)
        source_side, target_side = (
            EncodedSide.from_lists([random.integers(4, self.vocab_size, length - 1).tolist()
                                    for length in lengths.astype(int)])
            for lengths in (source, target))
        return EncodedCorpus(source_side, target_side)


class Steps:
    """Optimizer steps as in a training, without its files."""

    def __init__(self, bench: Bench, kind: str, tokens: int | None = None, accumulation: int = 1,
                 dtype: torch.dtype = torch.bfloat16) -> None:
        make_deterministic(bench.device)
        tokens = tokens or bench.tokens
        self.bench, self.number = bench, 0
        self.corpus = bench.corpus(kind, 4 * tokens // (12 if kind == "captions" else 24))
        self.plan = list(plan_epoch(self.corpus, tokens, accumulation, 1, 0))[:-1]
        shape = Shape.for_plan(self.corpus, self.plan, MAX_LENGTH) if bench.on_gpu else None
        section = TrainingSection(label_smoothing=0.1, optimizer="adam", betas=(0.9, 0.98), epsilon=1e-9,
                                  gradient_clip=0.0)
        self.training = TrainingStep(bench.model().train(), section, dtype, seed=1, max_length=MAX_LENGTH, shape=shape)

    def step(self) -> int:
        """Do a step, and return its number of target tokens."""
        micro_batches = self.plan[self.number % len(self.plan)]
        self.number += 1
        self.training.update(self.corpus, micro_batches, self.number, learning_rate=1e-4)
        return self.corpus.tokens(micro_batches)[1]

    def measure(self, name: str, steps: int | None = None) -> None:
        """Print and record time, rate, share of the peak rate and memory of a step."""
        bench = self.bench
        for _ in range(4):                                                      # captures the CUDA graph
            self.step()
        seconds, tokens = [], 0
        for _ in range(steps or bench.steps):
            bench.synchronise()
            began = time.perf_counter()
            tokens += self.step()
            bench.synchronise()
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds)
        rate = tokens / len(seconds) / median
        # Each weight takes part in one multiplication and one addition for each token forward, and in four backward.
        weights = sum(weight.numel() for weight in self.training.weights)
        memory = torch.cuda.max_memory_reserved() / 2**30 if bench.on_gpu else 0.0
        bench.results[name] = {"ms": 1e3 * median, "tokens": tokens / len(seconds), "tokens a second": rate,
                               "share of peak": 6 * weights * rate / PEAK, "memory GiB": memory}
        print(f"{name:45} {1e3 * median:8.2f} ms {tokens / len(seconds):9,.0f} tokens {rate:11,.0f} target tokens/s "
              f"{6 * weights * rate / PEAK:6.1%} of {PEAK / 1e12:.0f} TFLOP/s {memory:6.1f} GiB", flush=True)

    def checksum(self) -> str:
        """Return a checksum of the weights."""
        contents = b"".join(weight.detach().cpu().numpy().tobytes() for weight in self.training.weights)
        return hashlib.sha256(contents).hexdigest()[:12]


def profile(bench: Bench, name: str, function: Callable[[], object], calls: int = 3) -> None:
    """Print and record the time of each class of kernels, and the slowest kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    if not bench.on_gpu:
        return
    for _ in range(4):
        function()
    bench.synchronise()
    with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        for _ in range(calls):
            function()
        bench.synchronise()
        wall = 1e3 * (time.perf_counter() - began) / calls
    classes, counts, kernels = Counter[str](), Counter[str](), Counter[str]()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kind = next((kind for kind, parts in KERNELS.items() if any(part in event.name for part in parts)), "other")
            milliseconds = event.device_time / 1e3 / calls
            classes[kind] += milliseconds
            kernels[event.name[:90]] += milliseconds
            counts[kind] += 1
    print(f"profile of {name}: {wall:.2f} ms, {sum(classes.values()):.2f} of them in "
          f"{sum(counts.values()) / calls:.0f} kernels")
    for kind, milliseconds in classes.most_common():
        print(f"    {kind:20} {milliseconds:8.2f} ms {counts[kind] / calls:6.0f} kernels")
    for kernel, milliseconds in kernels.most_common(14):
        print(f"        {milliseconds:7.2f} ms  {kernel}", flush=True)
    bench.results[f"profile of {name}"] = {"ms": wall, "classes": dict(classes),
                                           "kernels": dict(kernels.most_common(60))}


def hardware(bench: Bench) -> None:
    """Measure the rates of a copy and of the matrix products of a training step."""
    def seconds(function: Callable[[], object], repeat: int = 20) -> float:
        for _ in range(3):
            function()
        bench.synchronise()
        began = time.perf_counter()
        for _ in range(repeat):
            function()
        bench.synchronise()
        return (time.perf_counter() - began) / repeat

    size = 2**30 if bench.on_gpu else 2**20
    first, second = (torch.empty(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
    rates = {"copy, TB/s": 2 * size / seconds(lambda: first.copy_(second)) / 1e12}
    print(f"copy: {rates['copy, TB/s']:.2f} TB/s")
    rows, width, inner, words = bench.tokens, bench.d_model, bench.feed_forward, bench.vocab_size
    chunk = rows // 7                                                           # rows of logits in a chunk of the loss
    for name, m, n, k in (("query, key, value", rows, 3 * width, width), ("output", rows, width, width),
                          ("inner", rows, inner, width), ("outer", rows, width, inner), ("logits", chunk, words, width),
                          ("weights of output", width, width, rows), ("weights of inner", inner, width, rows),
                          ("weights of logits", words, width, chunk)):
        left, right = (torch.randn(shape, device=bench.device, dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
        time_of_product = seconds(lambda left=left, right=right: left @ right.T)
        rates[f"{name}, TFLOP/s"] = 2 * m * n * k / time_of_product / 1e12
        print(f"    {name:18} {m:6} x {n:6} x {k:6} {rates[f'{name}, TFLOP/s']:6.0f} TFLOP/s "
              f"{1e6 * time_of_product:8.1f} us", flush=True)
    bench.results["hardware"] = rates


def training(bench: Bench) -> dict[str, Callable[[], object]]:
    """Return measurements of a training step."""
    def measure(kind: str) -> None:
        steps = Steps(bench, kind)
        steps.measure(f"training, {kind}")
        profile(bench, f"training, {kind}", steps.step)

    return {
        "hardware": lambda: hardware(bench),
        "captions": lambda: measure("captions"),
        "news": lambda: measure("news"),
        "accumulation": lambda: Steps(bench, "news", accumulation=4).measure("training, news, accumulation 4"),
        "small batches": lambda: Steps(bench, "captions", bench.small_tokens).measure(
            f"training, captions, {bench.small_tokens:,} tokens", 40 if bench.on_gpu else None),
        "large chunks": lambda: large_chunks(bench),
    }


def large_chunks(bench: Bench) -> None:
    """Measure training with chunks of logits of 1 GB."""
    before, loss_module.MAX_CHUNK_BYTES = loss_module.MAX_CHUNK_BYTES, 1_000_000_000
    try:
        Steps(bench, "captions").measure("training, captions, loss in chunks of 1 GB")
    finally:
        loss_module.MAX_CHUNK_BYTES = before


def checks(bench: Bench) -> dict[str, Callable[[], object]]:
    """Return checks of a training step: equal weights in two trainings, and gradients in bf16 near those in fp32."""
    def reproducible() -> None:
        checksums = []
        for _ in range(2):
            steps = Steps(bench, "captions")
            for _ in range(8):
                steps.step()
            checksums.append(steps.checksum())
        bench.results["two trainings have the same weights"] = checksums[0] == checksums[1]
        print(f"two trainings have the same weights: {checksums[0] == checksums[1]} {checksums}")

    def precise() -> None:
        gradients = []
        for dtype in (torch.float32, torch.bfloat16):
            steps = Steps(bench, "captions", bench.small_tokens, dtype=dtype)
            for module in steps.training.compute_model.modules():
                if isinstance(module, Dropout):
                    module.probability = 0.0
            steps.training.shape = steps.training.graphs = None
            _, gradient = steps.training.accumulate(steps.corpus, [((0,), steps.plan[0][0])], 1)
            gradients.append(gradient.double().cpu())
        distance = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
        bench.results["distance of bf16 gradients to fp32"] = distance
        print(f"distance of bf16 gradients to fp32: {distance:.4f}")

    return {"reproducible": reproducible, "precise": precise}


def decoding(bench: Bench) -> dict[str, Callable[[], object]]:
    """Return measurements of beam search. With random weights, every sentence has its maximum length."""
    corpus = bench.corpus("news", bench.sentences)
    lengths, limits = corpus.source.lengths, np.minimum(corpus.target.lengths, 120)
    engine = StaticEngine(bench.model().eval(), "bf16" if bench.on_gpu else "fp32", bench.device)

    def translate(beam_size: int, batch_tokens: int) -> int:
        tokens = 0
        for chosen in batches_in_order(lengths, batch_tokens * 2 // beam_size):
            ids, offsets, _ = corpus.source.gather(chosen)
            found = engine.whole_search(
                ids, offsets.astype(np.int32), limits[chosen].tolist(),
                SearchOptions(beam_size, power_length_penalty(1.0), banned_ids=[0, 1]))
            tokens += sum(len(hypotheses[0][0]) + 1 for hypotheses in found)
        return tokens

    def measure(beam_size: int, batch_tokens: int, graphs: bool = True) -> None:
        engine.cuda_graphs.enabled = graphs and bench.on_gpu
        rates = []
        for _ in range(3):
            bench.synchronise()
            began = time.perf_counter()
            tokens = translate(beam_size, batch_tokens)
            bench.synchronise()
            rates.append(tokens / (time.perf_counter() - began))
        name = f"beam {beam_size}, batches of {batch_tokens:,}{'' if graphs else ', without CUDA graphs'}"
        bench.results[name] = {"first pass": rates[0], "later": max(rates[1:])}
        print(f"{name:45} {rates[0]:9,.0f} tokens/s at first, then {max(rates[1:]):9,.0f}", flush=True)

    return {
        **{f"beam {beam_size}, {batch_tokens}": lambda beam_size=beam_size, batch_tokens=batch_tokens:
           measure(beam_size, batch_tokens)
           for beam_size, batch_tokens in ((4, 8_192), (4, 32_768), (4, 65_536), (5, 32_768), (1, 32_768))},
        "without graphs": lambda: measure(4, 8_192, graphs=False),
        "profile": lambda: profile(bench, "beam 4, batches of 32,768", lambda: translate(4, 32_768), calls=1),
    }


def recipe(bench: Bench, data: Path) -> dict[str, Callable[[], object]]:
    """Return the complete training of recipes/multi30k/de_en.yaml."""
    def train_recipe() -> None:
        from seq2seq.evaluation.scores import to_dict
        from seq2seq.recipe import load_recipe
        from seq2seq.training.run import train

        began = time.perf_counter()
        scores = train(load_recipe(RECIPES / "multi30k" / "de_en.yaml", [f"data.root={data}"]),
                       ROOT / "runs" / "benchmarks" / "multi30k")
        bench.results["multi30k"] = {"minutes": (time.perf_counter() - began) / 60,
                                     "scores": {test: to_dict(values) for test, values in scores.items()}}
        print(bench.results["multi30k"])

    return {"multi30k": train_recipe}


def main() -> int:
    """Run the command and return its exit code: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], "training", "checks", "decoding", "recipe"], metavar="PART",
                        help="training, checks, decoding, recipe (default: the first three)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k, for the part recipe (default: as in its recipe)")
    parser.add_argument("--tiny", action="store_true", help="tiny model and batches")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="directory for device.json (default: runs/benchmarks)")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")                 # for deterministic matrix products
    bench = Bench(torch.device(choose_device()))
    if arguments.tiny:
        bench = Bench(bench.device, d_model=64, layers=1, num_heads=2, feed_forward=128, vocab_size=300, tokens=300,
                      small_tokens=200, sentences=20, steps=2)
    print(f"torch {torch.__version__}, {describe(str(bench.device))}", flush=True)
    bench.results["surroundings"] = {**environment(), "device": describe(str(bench.device))}
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed = False
    for part in arguments.parts or ["training", "checks", "decoding"]:
        measurements = recipe(bench, arguments.data) if part == "recipe" else {
            "training": training, "checks": checks, "decoding": decoding}[part](bench)
        for name, measure in measurements.items():
            began = time.perf_counter()
            try:
                measure()
            except Exception:
                failed = True
                print(f"{part}, {name} failed:\n{traceback.format_exc(limit=-3)}", flush=True)
            if bench.on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            print(f"    ({part}, {name}: {time.perf_counter() - began:.0f} s)", flush=True)
            (arguments.output / "device.json").write_text(json.dumps(bench.results, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
