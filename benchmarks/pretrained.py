"""Processor time of searches with random models of the kinds that `seq2seq import` reads.

    OMP_NUM_THREADS=1 python -m benchmarks.pretrained

T5 (6 + 6 gated layers of width 512): our kernels in int8 and fp32, and PyTorch in fp32. M2M-100 (6 + 6 layers of width
512): the search of the int8 kernels as a whole, and step by step. All sentences get translations of 20 tokens.
"""

import math
import sys
import time
from itertools import product
from typing import cast

import numpy as np
import torch

from benchmarks.measuring import environment
from seq2seq.devices import cpu_flags
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.int8 import NativeEngine
from seq2seq.inference.kernel_library import Functions, usable_libraries
from seq2seq.inference.load_model import as_arrays, stored_weights
from seq2seq.model import build_model
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import TransformerSection
from seq2seq.search.beam import WholeSearch, search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID

VOCAB_SIZE, LENGTH, ROUNDS = 32_000, 20, 5
T5 = TransformerSection(norm="pre", norm_type="rms", positions="relative", bias=False, score="dot", gated=True,
                        activation="gelu_tanh", feed_forward=1024, head_size=64, tied_embeddings="inputs",
                        scale_embedding=False, decoder_start="<unk>")
M2M = TransformerSection(norm="pre", positions="fairseq", decoder_start="</s>")
Search = tuple[NativeEngine | EagerEngine, WholeSearch | None, int | None]
"""Engine, its own search or None for a search step by step, and first token."""


def engines_of(section: TransformerSection) -> dict[str, NativeEngine | EagerEngine]:
    """Return the engines of a random model by name. The logit of `</s>` is 0, so that others are larger."""
    torch.manual_seed(1)
    model = cast(Transformer, build_model(section, VOCAB_SIZE, VOCAB_SIZE)).eval()
    with torch.no_grad():
        model.output_weight[END_ID] = 0
    weights = as_arrays(stored_weights(model))
    libraries = {precision: usable_libraries(cpu_flags(), precision)[0] for precision in ("int8", "fp32")}
    return {**{precision: NativeEngine(section, (VOCAB_SIZE, VOCAB_SIZE), weights, Functions(library))
               for precision, library in libraries.items()},
            "PyTorch": EagerEngine(model, "fp32", torch.device("cpu"))}


def main() -> int:
    """Print a Markdown table of the ratios."""
    t5, m2m, random = engines_of(T5), engines_of(M2M)["int8"], np.random.default_rng(1)
    systems: dict[str, dict[str, Search]] = {
        "T5": {name: (engine, engine.whole_search, None) for name, engine in t5.items()},
        "M2M-100": {"whole": (m2m, m2m.whole_search, 7), "step by step": (m2m, None, 7)}}
    print("| model | sentences | beam | processor time, relative to the first |\n|---|---:|---:|---|")
    for kind, count, beam in product(systems, (1, 16), (1, 5)):
        offsets = np.concatenate([[0], random.integers(8, 30, count).cumsum()]).astype(np.int32)
        source, times = random.integers(3, VOCAB_SIZE, offsets[-1]), {name: math.inf for name in systems[kind]}
        for _ in range(ROUNDS):
            for name, (engine, whole_search, first_id) in systems[kind].items():
                options = SearchOptions(beam, power_length_penalty(1.0), banned_ids=[0, 1], first_id=first_id)
                began = time.process_time()
                found = search(engine, source, offsets, [LENGTH + 1] * count, options, whole_search)
                times[name] = min(times[name], time.process_time() - began)
                assert all(len(hypothesis.tokens) == LENGTH for hypothesis, in found)
        fastest = next(iter(times.values()))
        print(f"| {kind} | {count} | {beam} | "
              f"{', '.join(f'{name} {seconds / fastest:.2f}' for name, seconds in times.items())} |", flush=True)
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
