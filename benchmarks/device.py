"""Speed of the base model on a GPU: training, decoding, and Multi30k from text to BLEU.

    python -m benchmarks.device --data DIRECTORY                 # on the first GPU, or on the CPU where there is none
    python -m benchmarks.device --shape tiny --steps 2           # shows in seconds that it runs

Prints and writes to runs/benchmarks/device.json: target tokens a second of training steps (the trainer's own) and their
share of the processor's peak, target tokens a second of beam search, and, with --train, the minutes and scores of
recipes/multi30k/de_en.yaml.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RECIPES, ROOT, SHAPES, benchmark_recipe
from benchmarks.measuring import surroundings
from seq2seq.data.corpus import read_corpus
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe

# Floating-point operations of training for a target token with its source token; bf16 peak by processor (dense).
OPERATIONS = {"small": 45e6, "base": 365e6, "tiny": 0.1e6}
PEAKS = {"H200": 790e12, "H100": 790e12, "A100": 312e12}


def main() -> int:
    """The command; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="Multi30k (default: where its recipe looks for it, or else the phrasebook)")
    parser.add_argument("--shape", choices=SHAPES, default="base", help="size of the model (default: base)")
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="target tokens a step (default: the shape's)")
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="of a round of training (default: 30)")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N", help="to translate (default: 1000)")
    parser.add_argument("--train", action="store_true", help="also train Multi30k to the end")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY")
    arguments = parser.parse_args()
    try:
        recipe = benchmark_recipe(arguments.data, arguments.shape, None)
        if arguments.batch_tokens:
            section = recipe.training.model_copy(update={"batch_tokens": arguments.batch_tokens})
            recipe = recipe.model_copy(update={"training": section})
        with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as run:
            found = {"training": training(recipe, Path(run), arguments.steps, OPERATIONS[arguments.shape]),
                     "decoding": decoding(recipe, Path(run), arguments.sentences)}
            if arguments.train:
                found["multi30k"] = whole_training(arguments.data, Path(run) / "multi30k")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    found["surroundings"] = {**surroundings(), "device": device_name(), "shape": arguments.shape}
    print(json.dumps(found, indent=2, ensure_ascii=False))
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "device.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0


def training(recipe: Recipe, run: Path, steps: int, operations: float) -> dict[str, Any]:
    """Target tokens a second, and the share of the peak where that is known."""
    from benchmarks.training import planned
    from seq2seq.training.trainer import Training

    trained = Training(recipe, run)
    plan, _ = planned(trained.corpus, recipe, steps)
    tokens = sum(int(trained.corpus.target.lengths[part].sum()) for (part,) in plan)
    rates = []
    for _ in range(4):
        synchronise()
        began = time.perf_counter()
        for parts in plan:
            trained._step(parts)
        synchronise()
        rates.append(tokens / (time.perf_counter() - began))
    rate = statistics.median(rates[1:])                                         # the first round warms up
    peak = next((value for name, value in PEAKS.items() if name in device_name()), None)
    return {"target tokens a second": rate, "share of peak": rate * operations / peak if peak else None,
            "target tokens a step": tokens / len(plan), "memory MB": device_memory()}


def decoding(recipe: Recipe, run: Path, sentences: int) -> dict[str, Any]:
    """Target tokens a second with beam 4; random weights never end a sentence, so that each has 32."""
    from benchmarks.decoding import random_bundle
    from seq2seq.translation.translator import Translator

    translator = Translator.load(random_bundle(recipe, run))
    (test,) = recipe.data.test.values()
    lines = [source for _, source, _ in read_corpus(test, recipe.data_directory)][:sentences]
    rates = []
    for _ in range(3):
        synchronise()
        began = time.perf_counter()
        found = translator.translate(lines, beam_size=4, max_length_ratio=1e-9, max_length_offset=32)
        synchronise()
        rates.append(sum(best.tokens for best, *_ in found) / (time.perf_counter() - began))
    return {"target tokens a second": statistics.median(rates[1:]), "precision": translator.precision,
            "memory MB": device_memory()}


def whole_training(data: Path, run: Path) -> dict[str, Any]:
    """Minutes and scores of the recipe as it stands."""
    from seq2seq.evaluation.scores import to_dict
    from seq2seq.training.trainer import train

    began = time.perf_counter()
    scores = train(load_recipe(RECIPES / "multi30k" / "de_en.yaml", [f"data.root={data}"]), run)
    return {"minutes": (time.perf_counter() - began) / 60,
            "scores": {test: to_dict(each) for test, each in scores.items()}}


def device_name() -> str:
    """The processor that computes."""
    from seq2seq.devices import choose_device, describe

    return describe(choose_device())


def synchronise() -> None:
    """Wait until a GPU has done what it was told."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_memory() -> float | None:
    """The most memory that tensors on the GPU ever took, in MB."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None


if __name__ == "__main__":
    sys.exit(main())
