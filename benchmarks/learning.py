"""Compare the losses of seq2seq's and plain PyTorch models, trained on the same batches with the same schedule.

    python -m benchmarks.learning --data DIRECTORY                    # tiny, 1,500 steps, fp32 and bf16
    python -m benchmarks.learning --shape small --threads 1 --at-once 2
    python -m benchmarks.learning --shape rnn --steps 500

The text is Multi30k, English to German. Every system gets the same sentence pairs in the same steps. seq2seq uses the
trainer's optimizer step; the reference is `torch.nn.Transformer` or `torch.nn.GRU` in a plain loop (reference.py).
Prints the label-smoothed training losses as a table. Its last row is the validation loss in fp32, without smoothing.
Writes the losses and a plot of them to runs/benchmarks/learning-SHAPE.json and .png.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import environment
from benchmarks.reference import plain_loss, plain_model, train_steps
from seq2seq.data.batching import Batch, EncodedCorpus, gather
from seq2seq.data.epoch_plan import batches_in_order, plan_epoch
from seq2seq.devices import choose_device, configure_process, has_fast_bf16
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.run import start_training

ROOT = Path(__file__).parents[1]
REFERENCE = "plain PyTorch fp32"
# tiny is fairseq's transformer_tiny with the dropout, learning rate and warm-up published for Multi30k
# (recipes/multi30k/en_de_published.yaml). base is the model and schedule of Vaswani et al. 2017. small and rnn have the
# sizes of configs/transformer_small.yaml and configs/rnn_small.yaml.
SHAPES: dict[str, list[str]] = {
    "tiny": ["tokenizer.type=bpe", "tokenizer.vocab_size=10000", "model.encoder_layers=4", "model.decoder_layers=4",
             "model.d_model=128", "model.feed_forward=256", "model.num_heads=4", "model.dropout=0.3",
             "training.learning_rate=5e-3", "training.warmup_steps=2000"],
    "small": ["tokenizer.vocab_size=8000", "model.encoder_layers=3", "model.decoder_layers=3", "model.d_model=256",
              "model.feed_forward=1024", "model.num_heads=4", "model.dropout=0.3", "training.learning_rate=2e-3",
              "training.warmup_steps=1000"],
    "base": ["tokenizer.type=bpe", "tokenizer.vocab_size=10000", "model.encoder_layers=6", "model.decoder_layers=6",
             "model.d_model=512", "model.feed_forward=2048", "model.num_heads=8", "model.dropout=0.1",
             "training.learning_rate=7e-4", "training.warmup_steps=4000"],
    "rnn": ["tokenizer.vocab_size=8000", f"model.base={ROOT}/configs/rnn_small.yaml", "training.learning_rate=1.5e-3",
            "training.warmup_steps=200"],
}


def learning_recipe(data: Path, shape: str, settings: list[str]) -> Recipe:
    """Return the recipe of Multi30k in `data` with the model and schedule of a shape, and overrides as in `--set`."""
    return load_recipe(ROOT / "recipes" / "multi30k" / "en_de.yaml", [
        f"data.root={data}", "training.schedule=inverse_sqrt", "training.ema_decay=0.0", "training.batch_tokens=4096",
        *SHAPES[shape], *settings])


def epoch_steps(corpus: EncodedCorpus, recipe: Recipe, count: int) -> Iterator[list[np.ndarray]]:
    """Yield the first `count` optimizer steps of a training, epoch after epoch."""
    epoch = 0
    while count:
        plan = list(islice(plan_epoch(corpus, recipe.training.batch_tokens, 1, recipe.seed, epoch), count))
        yield from plan
        count, epoch = count - len(plan), epoch + 1


def ours(recipe: Recipe, run: Path, count: int, precision: str) -> Iterator[tuple[float, int]]:
    """Train seq2seq's model. Yield (summed loss, number of target tokens) of each step, and at the end (summed loss
    without label smoothing, number of target tokens) of the validation set."""
    section = recipe.training.model_copy(update={"precision": precision})
    training = start_training(recipe.model_copy(update={"training": section}), run)
    for indices in epoch_steps(training.prepared.corpus, recipe, count):
        training.update(training.prepared.corpus, indices)
        window, training.state.window = training.state.window, {}
        if "loss" not in window:
            raise UserError(f"seq2seq {precision}, step {training.state.step}: the gradient is not finite. Use a lower "
                            "learning rate: --set training.learning_rate=RATE.")
        yield window["loss"], int(window["target_tokens"])
    model = training.step.model.eval()
    yield validation_loss(training, lambda batch: model.loss(batch).of_tokens.sum())


def reference(recipe: Recipe, run: Path, count: int, _: str) -> Iterator[tuple[float, int]]:
    """Train the reference model, and yield the same values as `ours`."""
    training = start_training(recipe, run)                                      # only provides the text
    corpus = training.prepared.corpus
    torch.manual_seed(recipe.seed)
    model = plain_model(recipe, training.tokenizers.target.vocab_size).to(training.step.device).train()
    yield from train_steps(model, corpus, epoch_steps(corpus, recipe, count), recipe.training)
    model.eval()
    yield validation_loss(training, lambda batch: plain_loss(model, batch, 0.0, "sum"))


def validation_loss(training: TrainingLoop, loss: Callable[[Batch], Tensor]) -> tuple[float, int]:
    """Return the summed loss of the validation set and its number of target tokens."""
    corpus = training.validation.corpus
    batches = [gather(corpus, indices) for indices in batches_in_order(corpus.target.lengths, 4096)]
    with torch.inference_mode():
        total = sum(loss(batch.to(training.step.device)).item() for batch in batches)
    return total, sum(batch.target_count for batch in batches)


def learn(system: str, recipe: Recipe, run: Path, count: int, every: int) -> dict[str, Any]:
    """Train one system. Return its mean loss over each `every` steps, its validation loss, and its training time in
    seconds."""
    configure_process(recipe.training.threads)
    train = reference if system == REFERENCE else ours
    curve: list[list[float]] = []
    loss, tokens, seconds, began = 0.0, 0, 0.0, time.monotonic()
    *_, precision = system.split()
    for step, (total, targets) in enumerate(train(recipe, run, count, precision), 1):
        if step > count:
            return {"system": system, "curve": curve, "validation": total / targets, "seconds": seconds}
        loss, tokens, seconds = loss + total, tokens + targets, time.monotonic() - began
        if step % every == 0 or step == count:
            curve.append([step, loss / tokens])
            print(f"{system}: step {step:,}/{count:,}  loss {loss / tokens:.4f}  "
                  f"{(count - step) * seconds / step / 60:.0f} min left", file=sys.stderr, flush=True)
            loss, tokens = 0.0, 0
    raise AssertionError("every system yields its validation loss last")


def train_all(systems: Sequence[str], recipe: Recipe, run: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all systems, each in a separate process, and save the results each time one is finished."""
    done: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        futures = [pool.submit(learn, system, recipe, run, arguments.steps, arguments.every) for system in systems]
        try:
            for future in as_completed(futures):
                done[future.result()["system"]] = future.result()
                save([done[system] for system in systems if system in done], recipe, arguments)
        finally:
            pool.shutdown(cancel_futures=True)
    return [done[system] for system in systems]


def end_with_parent() -> None:
    """End this process when its parent ends for any reason. Otherwise the training would go on for hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def table(rows: list[dict[str, Any]]) -> str:
    """Format the losses of all systems as a Markdown table: eight steps, then the validation set."""
    steps = [step for step, _ in rows[0]["curve"]]
    listed = sorted({steps[round(index * (len(steps) - 1) / 7)] for index in range(8)})
    lines = ["| step | " + " | ".join(row["system"] for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for step in listed:
        lines.append(f"| {int(step):,} | " + " | ".join(f"{dict(row['curve'])[step]:.3f}" for row in rows) + " |")
    lines.append("| validation | " + " | ".join(f"{row['validation']:.3f}" for row in rows) + " |")
    return "\n".join(lines)


def draw(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """Plot the training losses over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for row in rows:
        axes.plot(*zip(*row["curve"], strict=True), label=f"{row['system']}: validation {row['validation']:.3f}",
                  linestyle="--" if row["system"] == REFERENCE else "-")
    axes.set(xlabel="optimizer step", ylabel="training loss (label-smoothed, nats a token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def save(rows: list[dict[str, Any]], recipe: Recipe, arguments: argparse.Namespace) -> None:
    """Write curves and settings as JSON, and the plot."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / f"learning-{arguments.shape}"
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    content = {"benchmark": "learning", "surroundings": environment(), "options": options, "rows": rows}
    file.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    draw(file.with_suffix(".png"), f"{arguments.shape}, {recipe.training.batch_tokens:,} target tokens a step", rows)


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "recipes" / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k (default: as in its recipe)")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="size of the model (default: tiny)")
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="optimizer steps (default: 1500)")
    parser.add_argument("--every", type=int, default=50, metavar="N",
                        help="steps per point of the loss curve (default: 50)")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", choices=(REFERENCE, "seq2seq fp32", "seq2seq bf16"),
                        help="systems to train (default: the reference, fp32, and bf16 if the processor supports it)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each system (default: one per core)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N",
                        help="number of systems trained in parallel (default: 1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="override a key of the recipe for all systems, as in seq2seq train")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="directory for the JSON file and the plot (default: runs/benchmarks)")
    arguments = parser.parse_args()
    if arguments.steps < arguments.every or min(arguments.every, arguments.at_once, arguments.threads or 1) < 1:
        parser.error("--every, --threads and --at-once must be at least 1, and --steps at least --every")
    systems = arguments.systems or [REFERENCE, "seq2seq fp32", *["seq2seq bf16"] * has_fast_bf16(choose_device())]
    settings = [*arguments.settings, f"training.max_steps={arguments.steps}",
                *([f"training.threads={arguments.threads}"] if arguments.threads else [])]
    try:
        recipe = learning_recipe(arguments.data, arguments.shape, settings)
        with tempfile.TemporaryDirectory(prefix="seq2seq-learning-") as run:
            tokenizers = start_training(recipe, Path(run)).tokenizers           # prepares the text once for all systems
            plain_model(recipe, tokenizers.target.vocab_size)                   # refuses unsupported recipes early
            rows = train_all(systems, recipe, Path(run), arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(rows))
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
