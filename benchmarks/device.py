"""Measure a GPU: training and beam search of seq2seq and of transformers, and the time of each class of kernels.

    python -m benchmarks.device                                # hardware, training, decoding, checks
    python -m benchmarks.device decoding                       # one part
    python -m benchmarks.device recipe --data DIRECTORY        # Multi30k from text to BLEU
    python -m benchmarks.device --tiny                         # quick test of this script, also on a CPU

With a new GPU, two commands show whether the code is right there, and how fast it is. Both together take less than 15
minutes (estimated: 2 and 7):

    make test-gpu
    make bench-gpu BENCH="--data DIRECTORY"                    # all parts; DIRECTORY contains Multi30k

Weights and token ids are random, so that only the part `recipe` needs text. The lengths of the sentences are those of
image captions (mean 14 tokens) or news (mean 30). transformers gets the same sentences in batches of similar length,
because it pads them. The output directory gets device.json and tables, device.md, anew after each measurement, and a
picture, device.png. A measurement that fails prints its error, and the next one runs.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import pkgutil
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.__main__ import RECIPES, ROOT, SHAPES
from benchmarks.measuring import environment
from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.data.epoch_plan import batches_in_order, plan_epoch
from seq2seq.devices import choose_device, describe
from seq2seq.inference.engines import torch_engine
from seq2seq.model import build_model, kernels
from seq2seq.recipe import TrainingSection, TransformerSection
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.training.run import make_deterministic
from seq2seq.training.step import TrainingStep, gradient_of

MAX_LENGTH = 251
TEXTS = {"captions": 14, "news": 30}
"""Mean lengths of the sentences."""
KERNELS = {
    "attention": ("flash", "fmha", "attention"),
    "matrix products": ("gemm", "cutlass", "nvjet", "cublas", "splitK", "xmma", "::mm", "::bmm", "addmm"),
    "norm": ("layer_norm", "GammaBeta"), "dropout": ("dropout",),
    "Adam, lists": ("multi_tensor", "FusedAdam", "foreach"),
    "embedding": ("embedding", "radix", "sort", "indexSelect", "index_select"),
    "reductions": ("reduce_kernel", "::sum"), "copies, fills": ("Memcpy", "Memset", "copy", "fill", "CatArray"),
    "elementwise": ("elementwise",),
}
"""Classes of the profile, with parts of the names of PyTorch's kernels. The first class that fits counts. The class of
a kernel of this project is the name of its file."""


@cache
def own_kernels() -> dict[str, str]:
    """Return the file of each Triton kernel of this project by the name of the kernel; empty without Triton."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return {}
    modules = [importlib.import_module(f"{kernels.__name__}.{info.name}")
               for info in pkgutil.iter_modules(kernels.__path__)]
    return {kernel.__name__: module.__name__.rpartition(".")[2].replace("_", " ") for module in modules
            for kernel in vars(module).values()
            if isinstance(kernel, JITFunction) and kernel.__module__ == module.__name__}


def class_of(kernel: str) -> str:
    """Return the class of a kernel in a profile."""
    return own_kernels().get(kernel) or next(
        (kind for kind, parts in KERNELS.items() if any(part in kernel for part in parts)), "other")


@dataclasses.dataclass
class Bench:
    """Sizes of what is measured, and the results so far.

    shapes: names of `SHAPES`; the last one is that of the searches. tokens: numbers of target tokens of a step.
    sentences: number of sentences to translate. peer_sentences: likewise by transformers, `peer_tokens` tokens each.
    batch_tokens: source tokens of a batch of the search, as `decoding.batch_tokens: auto` on a GPU.
    """

    device: torch.device
    shapes: tuple[str, ...] = ("small", "base")
    tokens: tuple[int, ...] = (2_048, 25_000)
    sentences: int = 3_003
    peer_sentences: int = 256
    peer_tokens: int = 28
    batch_tokens: int = 65_536
    steps: int = 12
    results: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.type == "cuda"

    def now(self) -> float:
        """Return the time in seconds at which the device has finished all operations."""
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, function: Callable[[], object], repeat: int, warm_up: int = 3) -> list[float]:
        """Return the seconds that each of some calls takes on the device."""
        for _ in range(warm_up):                                                # compiles kernels, captures CUDA graphs
            function()
        times = [self.now()]
        for _ in range(repeat):
            function()
            times.append(self.now())
        return np.diff(times).tolist()

    def corpus(self, text: str, pairs: int, vocab_size: int) -> EncodedCorpus:
        """Return pairs of random tokens with the lengths of "captions" or "news"."""
        random = np.random.default_rng(1)
        if text == "captions":
            target = np.clip(np.round(random.normal(14, 4.2, pairs)), 4, 44)
        else:
            target = np.clip(np.round(random.lognormal(np.log(25), 0.6, pairs)), 3, MAX_LENGTH - 1)
        source = np.clip(np.round(target * random.normal(1, 0.12, pairs)), 3, MAX_LENGTH - 1)
        source_side, target_side = (EncodedSide.from_lists([random.integers(4, vocab_size, length - 1).tolist()
                                                            for length in lengths.astype(int)])
                                    for lengths in (source, target))
        return EncodedCorpus(source_side, target_side)


def section_of(shape: str, dropout: float = 0.1) -> TransformerSection:
    """Return the sizes of a model of `SHAPES`."""
    sizes = SHAPES[shape]
    return TransformerSection(d_model=sizes["d_model"], encoder_layers=sizes["layers"], decoder_layers=sizes["layers"],
                        num_heads=sizes["heads"], feed_forward=sizes["feed_forward"], dropout=dropout)


class Steps:
    """Optimizer steps as in a training, without its files. The weights are always the same.

    graphs: False: no fixed shape and no CUDA graph.
    """

    def __init__(self, bench: Bench, shape: str, text: str, tokens: int, dtype: torch.dtype = torch.bfloat16,
                 dropout: float = 0.1, graphs: bool = True) -> None:
        make_deterministic()
        vocab_size = SHAPES[shape]["vocab_size"]
        self.number = 0
        self.corpus = bench.corpus(text, 5 * tokens // TEXTS[text], vocab_size)
        self.plan = list(plan_epoch(self.corpus, tokens, 1, 1, 0))[:-1]
        fixed = Shape.for_plan(self.corpus, self.plan, MAX_LENGTH) if graphs and bench.on_gpu else None
        torch.manual_seed(1)
        model = build_model(section_of(shape, dropout), vocab_size, vocab_size).to(bench.device).train()
        section = TrainingSection(label_smoothing=0.1, gradient_clip=0.0)
        self.training = TrainingStep(model, section, dtype, seed=1, max_length=MAX_LENGTH, shape=fixed)

    def step(self) -> None:
        """Do a step."""
        micro_batches = self.plan[self.number % len(self.plan)]
        self.number += 1
        self.training.update(self.corpus, micro_batches, self.number, learning_rate=1e-4)

    def checksum(self) -> str:
        """Return a checksum of the weights."""
        contents = b"".join(weight.detach().cpu().numpy().tobytes() for weight in self.training.weights)
        return hashlib.sha256(contents).hexdigest()[:12]


def profile(bench: Bench, function: Callable[[], object], calls: int = 3) -> dict[str, Any]:
    """Return the number of kernels of a call, and the milliseconds of each class of kernels and of the slowest kernels.
    On a CPU, operators count as kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    with profiler(activities=activities) as found:
        for _ in range(calls):
            function()
        bench.now()
    classes, slowest, kernels_run = Counter[str](), Counter[str](), 0
    for event in found.events():
        if event.device_type.name == ("CUDA" if bench.on_gpu else "CPU"):
            time_of_event = event.device_time if bench.on_gpu else event.self_cpu_time_total
            classes[class_of(event.name)] += time_of_event / 1e3 / calls
            slowest[event.name[:90]] += time_of_event / 1e3 / calls
            kernels_run += 1
    return {"classes": dict(classes.most_common()), "kernels": kernels_run / calls,
            "slowest": dict(slowest.most_common(30))}


def hardware(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Yield the measurement of the rates of a copy and of matrix products in bf16.

    The largest product gives the rate of which shares are reported. The others are those of a step of the base model.
    """
    def products(left: Tensor, right: Tensor, count: int) -> None:
        for _ in range(count):
            torch.matmul(left, right.T)

    def rates() -> dict[str, float]:
        size, scale = (2**30, 1) if bench.on_gpu else (2**20, 64)
        first, second = (torch.empty(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
        found = {"copy, TB/s": 2 * size / statistics.median(bench.seconds(lambda: first.copy_(second), 20)) / 1e12}
        for m, n, k in ((8192, 8192, 8192), (25_000, 1536, 512), (25_000, 512, 512), (25_000, 2048, 512),
                        (25_000, 512, 2048), (16_384, 32_000, 512), (512, 512, 25_000), (32_000, 512, 16_384)):
            left, right = (torch.randn(rows // scale, k // scale, device=bench.device, dtype=torch.bfloat16)
                           for rows in (m, n))
            # Many products between two synchronisations, because one may take only 10 microseconds.
            (elapsed,) = bench.seconds(partial(products, left, right, 20), 1)
            found[f"{m} x {n} x {k}, TFLOP/s"] = 20 * 2 * m * n * k / scale**3 / elapsed / 1e12
        return found

    yield "hardware", rates


def peak(bench: Bench) -> float:
    """Return the measured rate of large matrix products, in operations a second; NaN if it has not been measured."""
    return 1e12 * float(bench.results.get("hardware", {}).get("8192 x 8192 x 8192, TFLOP/s", "nan"))


def training(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield measurements of training steps, each beside transformers with the same text."""
    def measure(shape: str, text: str, tokens: int) -> dict[str, Any]:
        steps = Steps(bench, shape, text, tokens)
        seconds = bench.seconds(steps.step, bench.steps if tokens > 10_000 or not bench.on_gpu else 40, warm_up=4)
        rate = mean_tokens(steps.corpus, steps.plan) / statistics.median(seconds)
        # Each weight takes part in one multiplication and one addition for each token forward, and in four backward.
        operations = 6 * sum(weight.numel() for weight in steps.training.weights)
        return {"ms": 1e3 * statistics.median(seconds), "tokens a second": rate,
                "share of matrix speed": operations * rate / peak(bench),
                "memory GiB": torch.cuda.max_memory_reserved() / 2**30 if bench.on_gpu else 0.0,
                **profile(bench, steps.step)}

    def measure_transformers(shape: str, text: str, tokens: int) -> dict[str, float]:
        from benchmarks.marian import marian
        from benchmarks.training import marian_loss, steps_of_similar_length

        vocab_size = SHAPES[shape]["vocab_size"]
        corpus = bench.corpus(text, 5 * tokens // TEXTS[text], vocab_size)
        recipe: Any = SimpleNamespace(seed=1, training=TrainingSection(batch_tokens=tokens))
        plan, _ = steps_of_similar_length(corpus, recipe, 4)
        torch.manual_seed(1)
        model = marian(section_of(shape), vocab_size).to(bench.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=bench.on_gpu)
        batches = cycle([gather(corpus, micro_batch).to(bench.device) for (micro_batch,) in plan])

        def step() -> None:
            with torch.autocast(bench.device.type, torch.bfloat16):
                loss = marian_loss(model, next(batches), 0.1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        seconds = bench.seconds(step, bench.steps, warm_up=4)
        return {"ms": 1e3 * statistics.mean(seconds), "tokens a second":
                mean_tokens(corpus, plan) / statistics.mean(seconds)}

    for shape, tokens, text in product(bench.shapes, bench.tokens, TEXTS):
        name = f"{shape}, {tokens:,} tokens, {text}"
        yield name, partial(measure, shape, text, tokens)
        yield f"transformers: {name}", partial(measure_transformers, shape, text, tokens)


def mean_tokens(corpus: EncodedCorpus, plan: list[list[np.ndarray]]) -> float:
    """Return the mean number of target tokens of a step."""
    return statistics.mean(corpus.tokens(micro_batches)[1] for micro_batches in plan)


def decoding(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield measurements of beam search. With random weights, every sentence has its maximum length."""
    shape = bench.shapes[-1]
    vocab_size = SHAPES[shape]["vocab_size"]
    corpus = bench.corpus("news", bench.sentences, vocab_size)
    limits = np.minimum(corpus.target.lengths, 120)

    def measure(beam_size: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model = build_model(section_of(shape), vocab_size, vocab_size).to(bench.device)
        engine = torch_engine(model, "bf16" if bench.on_gpu else "fp32", str(bench.device))
        options = SearchOptions(beam_size, power_length_penalty(1.0), banned_ids=[0, 1])

        def translate() -> int:
            tokens = 0
            for chosen in batches_in_order(corpus.source.lengths, bench.batch_tokens * 2 // beam_size):
                ids, offsets, _ = corpus.source.gather(chosen)
                found = search(engine, ids, offsets.astype(np.int32), limits[chosen].tolist(), options,
                               engine.whole_search)
                tokens += sum(len(hypotheses[0].tokens) + 1 for hypotheses in found)
            return tokens

        began = bench.now()
        tokens = translate()
        first = bench.now() - began
        return {"tokens a second in the first pass": tokens / first,
                "tokens a second": tokens / min(bench.seconds(translate, 2, warm_up=0)),
                **profile(bench, translate, calls=1)}

    def measure_transformers(beam_size: int) -> dict[str, float]:
        from benchmarks.marian import marian
        from benchmarks.reference import padded

        torch.manual_seed(1)
        model = marian(section_of(shape), vocab_size).eval().to(bench.device)
        longest = np.argsort(corpus.source.lengths)[-bench.peer_sentences:]
        ids, offsets, _ = corpus.source.gather(longest)
        source, mask = (tensor.to(bench.device) for tensor in padded(
            torch.from_numpy(ids).long(), torch.from_numpy(offsets)))
        if bench.on_gpu:
            model = model.bfloat16()
        (seconds,) = bench.seconds(lambda: model.generate(
            input_ids=source, attention_mask=mask, num_beams=beam_size, do_sample=False,
            max_new_tokens=bench.peer_tokens, min_new_tokens=bench.peer_tokens), 1, warm_up=1)
        return {"tokens a second": len(source) * bench.peer_tokens / seconds}

    for beam_size in (4, 1):
        yield f"beam {beam_size}", partial(measure, beam_size)
        yield f"transformers: beam {beam_size}", partial(measure_transformers, beam_size)


def checks(bench: Bench) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield checks of a training step: equal weights in two trainings, and gradients in bf16 near those in fp32."""
    shape = bench.shapes[-1]

    def same_weights() -> bool:
        checksums = []
        for _ in range(2):
            steps = Steps(bench, shape, "captions", bench.tokens[-1])
            for _ in range(8):
                steps.step()
            checksums.append(steps.checksum())
        return checksums[0] == checksums[1]

    def distance() -> float:
        gradients = []
        for dtype in (torch.float32, torch.bfloat16):
            steps = Steps(bench, shape, "captions", bench.tokens[0], dtype, dropout=0.0, graphs=False)
            loss, _ = steps.training.loss(gather(steps.corpus, steps.plan[0][0]).to(bench.device))
            loss.backward()
            gradients.append(torch.cat([gradient_of(name, weight).double().cpu().flatten()
                                        for name, weight in steps.training.compute_model.named_parameters()]))
        return float((gradients[1] - gradients[0]).norm() / gradients[0].norm())

    yield "two trainings have the same weights", same_weights
    yield "distance of bf16 gradients to fp32", distance


def recipe(data: Path, _: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the complete training of recipes/multi30k/de_en.yaml."""
    def train_recipe() -> dict[str, Any]:
        from seq2seq.evaluation.scores import to_dict
        from seq2seq.recipe import load_recipe
        from seq2seq.training.run import train

        began = time.perf_counter()
        scores = train(load_recipe(RECIPES / "multi30k" / "de_en.yaml", [f"data.root={data}"]),
                       ROOT / "runs" / "benchmarks" / "multi30k")
        return {"seconds": time.perf_counter() - began,
                "scores": {test: to_dict(values) for test, values in scores.items()}}

    yield "multi30k", train_recipe


def table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table with a title."""
    return "\n".join([f"**{title}**", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}",
                      *(f"| {' | '.join(row)} |" for row in rows), ""])


def page(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    def number(name: str, key: str, form: str = ",.0f") -> str:
        return format(results[name][key], form) if key in results.get(name, {}) else ""

    measured = measured_in(results)
    trainings = [name for name in measured if not name.startswith("beam")]
    searches = [name for name in measured if name.startswith("beam")]
    classes = list(dict.fromkeys(kind for name in measured for kind in results[name].get("classes", {})))
    around = results["surroundings"]
    return "\n".join([
        f"{around['device']}, torch {around['torch']}, transformers {around['transformers']}, "
        f"commit {around['commit']}", "",
        table("Training", ["model, target tokens a step, text", "ms", "target tokens a second", "share of matrix speed",
                           "kernels", "memory, GiB", "transformers, target tokens a second"],
              [[name, number(name, "ms", ".2f"), number(name, "tokens a second"),
                number(name, "share of matrix speed", ".1%"), number(name, "kernels"),
                number(name, "memory GiB", ".1f"), number(f"transformers: {name}", "tokens a second")]
               for name in trainings]),
        table("Beam search, news", ["", "target tokens a second, first pass", "later", "kernels", "transformers"],
              [[name, number(name, "tokens a second in the first pass"), number(name, "tokens a second"),
                number(name, "kernels"), number(f"transformers: {name}", "tokens a second")] for name in searches]),
        table("Milliseconds by class of kernels", ["", *classes],
              [[name, *(format(results[name].get("classes", {}).get(kind, 0), ".2f") for kind in classes)]
               for name in measured]),
        table("Hardware and checks", ["", ""],
              [[key, format(value, ".2f")] for key, value in results.get("hardware", {}).items()]
              + [[name, str(value)] for name, value in results.items() if not isinstance(value, dict)]
              + [["Multi30k, seconds from text to BLEU", number("multi30k", "seconds")]])])


def measured_in(results: dict[str, Any]) -> list[str]:
    """Return the names of the measurements of seq2seq that have a profile."""
    return [name for name, result in results.items() if isinstance(result, dict) and "classes" in result]


def draw(path: Path, results: dict[str, Any]) -> None:
    """Draw the rates beside those of transformers, and the time of a training step by class of kernels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = measured_in(results)
    steps = [name for name in names if not name.startswith("beam")]
    figure, (rates, times) = pyplot.subplots(2, 1, figsize=(9, 3 + 0.45 * (len(names) + len(steps))))
    for offset, prefix, label in ((-0.2, "", "seq2seq"), (0.2, "transformers: ", "transformers")):
        values = [results.get(prefix + name, {}).get("tokens a second", 0.0) for name in names]
        rates.barh(np.arange(len(names)) + offset, values, 0.4, label=label, color="tab:grey" if prefix else "tab:blue")
    rates.set_yticks(np.arange(len(names)), names)
    rates.set_xlabel("target tokens a second")
    left = np.zeros(len(steps))
    for kind in dict.fromkeys(kind for name in steps for kind in results[name]["classes"]):
        milliseconds = np.array([results[name]["classes"].get(kind, 0.0) for name in steps])
        times.barh(steps, milliseconds, left=left, label=kind)
        left += milliseconds
    times.set_xlabel("milliseconds of a step by class of kernels")
    for axes in (rates, times):
        axes.invert_yaxis()
        axes.legend(fontsize="small")
    figure.suptitle(results["surroundings"]["device"])
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Run the command and return its exit code: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], "hardware", "training", "decoding", "checks", "recipe"],
                        metavar="PART", help="hardware, training, decoding, checks, recipe (default: the first four)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k, for the part recipe (default: as in its recipe)")
    parser.add_argument("--tiny", action="store_true", help="tiny model and batches")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="directory for device.json, device.md and device.png (default: runs/benchmarks)")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")                 # for deterministic matrix products
    bench = Bench(torch.device(choose_device()))
    if arguments.tiny:
        bench = Bench(bench.device, ("tiny",), (200, 300), sentences=5, peer_sentences=3, peer_tokens=4,
                      batch_tokens=300, steps=2)
    bench.results["surroundings"] = {**environment(), "device": describe(str(bench.device))}
    arguments.output.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[Bench], Iterator[tuple[str, Callable[[], object]]]]] = {
        "hardware": hardware, "training": training, "decoding": decoding, "checks": checks,
        "recipe": partial(recipe, arguments.data)}
    failed = False
    for part in arguments.parts or list(parts)[:-1]:
        for name, measure in parts[part](bench):
            began = time.perf_counter()
            try:
                result = bench.results[name] = measure()
                shown = {key: value for key, value in result.items() if not isinstance(value, dict)} if isinstance(
                    result, dict) else result
                print(f"{name} ({time.perf_counter() - began:.0f} s): {shown}", flush=True)
            except Exception:
                failed = True
                print(f"{name} failed:\n{traceback.format_exc(limit=-3)}", flush=True)
            if bench.on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            (arguments.output / "device.json").write_text(json.dumps(bench.results, indent=2) + "\n")
            (arguments.output / "device.md").write_text(page(bench.results))
    print(page(bench.results))
    draw(arguments.output / "device.png", bench.results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
