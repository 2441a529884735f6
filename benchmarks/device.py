"""Speed of the base model on a GPU: training, decoding, and Multi30k from text to BLEU.

    python -m benchmarks.device --data DIRECTORY                 # on the first GPU, or on the CPU if there is none
    python -m benchmarks.device --shape tiny --steps 2           # quick test of this script

Prints the results and writes them to runs/benchmarks/device.json. The result of training is target tokens a second and
the share of the processor's peak rate; the result of beam search is target tokens a second. With --train, the results
include the training time in minutes and the scores of recipes/multi30k/de_en.yaml.
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
from benchmarks.measuring import environment
from seq2seq.data.corpus import read_corpus
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe

OPERATIONS = {"small": 45e6, "base": 365e6, "tiny": 0.1e6}
"""Floating-point operations of training for one target token and one source token, by shape."""
PEAKS = {"H200": 790e12, "H100": 790e12, "A100": 312e12}
"""Peak rate of dense bf16 matrix products, in operations a second. The keys occur in the names of GPUs."""


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k (default: as in its recipe; the phrasebook if that is missing)")
    parser.add_argument("--shape", choices=SHAPES, default="base", help="size of the model (default: base)")
    parser.add_argument("--batch-tokens", type=int, metavar="N",
                        help="target tokens per step (default: depends on --shape)")
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="training steps per round (default: 30)")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N",
                        help="number of sentences to translate (default: 1000)")
    parser.add_argument("--train", action="store_true", help="also run the complete Multi30k training")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="directory for device.json (default: runs/benchmarks)")
    arguments = parser.parse_args()
    try:
        recipe = benchmark_recipe(arguments.data, arguments.shape, None)
        if arguments.batch_tokens:
            section = recipe.training.model_copy(update={"batch_tokens": arguments.batch_tokens})
            recipe = recipe.model_copy(update={"training": section})
        with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as run:
            results = {"training": training(recipe, Path(run), arguments.steps, OPERATIONS[arguments.shape]),
                       "decoding": decoding(recipe, Path(run), arguments.sentences)}
            if arguments.train:
                results["multi30k"] = complete_training(arguments.data, Path(run) / "multi30k")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    results["surroundings"] = {**environment(), "device": device_name(), "shape": arguments.shape}
    print(json.dumps(results, indent=2, ensure_ascii=False))
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "device.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return 0


def training(recipe: Recipe, run: Path, steps: int, operations: float) -> dict[str, Any]:
    """Measure target tokens a second of training (on a GPU, with CUDA graphs and without), and the share of the
    processor's peak rate, if the peak is known.

    operations: floating-point operations of training for one target token and one source token.
    """
    from benchmarks.training import first_steps
    from seq2seq.training.trainer import Training

    trained = Training(recipe, run)
    plan, _ = first_steps(trained.corpus, recipe, steps)
    tokens = sum(int(trained.corpus.target.lengths[micro_batch].sum()) for (micro_batch,) in plan)

    def measured() -> float:
        rates = []
        for _ in range(4):
            synchronise()
            began = time.perf_counter()
            for step in plan:
                trained._step(step)
            synchronise()
            rates.append(tokens / (time.perf_counter() - began))
        return statistics.median(rates[1:])                                     # the first round warms up

    graphs, without_graphs = trained.gradients.micro_batch.graphs, None
    if graphs is not None and graphs.enabled:
        graphs.enabled = False
        without_graphs = measured()
        graphs.enabled = True
    rate = measured()
    peak = next((value for name, value in PEAKS.items() if name in device_name()), None)
    return {"target tokens a second": rate, "without CUDA graphs": without_graphs,
            "share of peak": rate * operations / peak if peak else None,
            "target tokens a step": tokens / len(plan), "memory MB": device_memory()}


def decoding(recipe: Recipe, run: Path, sentences: int) -> dict[str, Any]:
    """Measure target tokens a second of beam search with beam size 4.

    A model with random weights never ends a sentence, so every translation has 32 tokens.
    """
    from benchmarks.decoding import random_bundle
    from seq2seq.translation.translator import Translator

    translator = Translator.load(random_bundle(recipe, run))
    (test,) = recipe.data.test.values()
    lines = [source for _, source, _ in read_corpus(test, recipe.data_directory)][:sentences]
    rates = []
    for _ in range(3):
        synchronise()
        began = time.perf_counter()
        translations = translator.translate(lines, beam_size=4, max_length_ratio=1e-9, max_length_offset=32)
        synchronise()
        rates.append(sum(best.tokens for best, *_ in translations) / (time.perf_counter() - began))
    return {"target tokens a second": statistics.median(rates[1:]), "precision": translator.precision,
            "memory MB": device_memory()}


def complete_training(data: Path, run: Path) -> dict[str, Any]:
    """Train the Multi30k recipe, and return the training time in minutes and the scores."""
    from seq2seq.evaluation.scores import to_dict
    from seq2seq.training.trainer import train

    began = time.perf_counter()
    scores = train(load_recipe(RECIPES / "multi30k" / "de_en.yaml", [f"data.root={data}"]), run)
    return {"minutes": (time.perf_counter() - began) / 60,
            "scores": {test: to_dict(test_scores) for test, test_scores in scores.items()}}


def device_name() -> str:
    """Return the name of the GPU or CPU that is measured."""
    from seq2seq.devices import choose_device, describe

    return describe(choose_device())


def synchronise() -> None:
    """Wait until the GPU has finished all operations."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_memory() -> float | None:
    """Return the peak memory that PyTorch has reserved on the GPU in MB; None on a CPU."""
    import torch

    return torch.cuda.max_memory_reserved() / 2**20 if torch.cuda.is_available() else None


if __name__ == "__main__":
    sys.exit(main())
