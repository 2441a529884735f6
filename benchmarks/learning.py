"""Losses of our models beside those of plain PyTorch references, trained on the same batches with the same schedule.

    python -m benchmarks.learning --data DIRECTORY                    # tiny, 1,500 steps, fp32 and bf16
    python -m benchmarks.learning --shape small --threads 1 --at-once 2
    python -m benchmarks.learning --shape rnn --steps 500

The text is Multi30k, English to German. Every system sees the same sentence pairs in the same steps. Ours is the
trainer's own step; the reference is `torch.nn.Transformer` or `torch.nn.GRU` in a plain loop (reference.py). Prints the
label-smoothed training loss side by side, and at the end the validation loss without smoothing, of the fp32 weights;
writes both with a plot to runs/benchmarks/learning-SHAPE.json and .png.
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
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import surroundings
from benchmarks.reference import plain_loss, plain_model, train_steps
from seq2seq.data.batching import Batch, EncodedCorpus, batches_in_order, gather, plan_epoch
from seq2seq.devices import choose_device, configure_process, has_fast_bf16
from seq2seq.errors import UserError
from seq2seq.model.loss import negative_log_likelihood
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.training.trainer import Training

ROOT = Path(__file__).parents[1]
REFERENCE = "plain PyTorch fp32"
# tiny is fairseq's transformer_tiny with the dropout, rate and warm-up published for Multi30k (recipes/multi30k,
# en_de_published.yaml), base the paper's model and schedule; small and rnn have the sizes of configs/.
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
    """Multi30k from `data`, with a shape's model and schedule, then `settings` as of `seq2seq train --set`."""
    return load_recipe(ROOT / "recipes" / "multi30k" / "en_de.yaml", [
        f"data.root={data}", "training.schedule=inverse_sqrt", "training.ema_decay=0.0", "training.batch_tokens=4096",
        *SHAPES[shape], *settings])


def steps_of(corpus: EncodedCorpus, recipe: Recipe, count: int) -> Iterator[list[np.ndarray]]:
    """The first optimizer steps of a training, epoch after epoch."""
    epoch = 0
    while count:
        plan = plan_epoch(corpus, recipe.training.batch_tokens, 1, recipe.seed, epoch)[:count]
        yield from plan
        count, epoch = count - len(plan), epoch + 1


def ours(recipe: Recipe, run: Path, count: int, precision: str) -> Iterator[tuple[float, int]]:
    """Each step's summed loss and its target tokens; last the same of the validation set, without smoothing."""
    section = recipe.training.model_copy(update={"precision": precision})
    training = Training(recipe.model_copy(update={"training": section}), run)
    for indices in steps_of(training.corpus, recipe, count):
        training._step(indices)
        window, training.state.window = training.state.window, {}
        if "loss" not in window:
            raise UserError(f"step {training.state.step}: the gradient is not finite")
        yield window["loss"], int(window["target_tokens"])
    model = training.model.eval()
    yield validation_loss(training, lambda batch: negative_log_likelihood(model(batch), batch.target_output).sum())


def reference(recipe: Recipe, run: Path, count: int, _: str) -> Iterator[tuple[float, int]]:
    """The same for the plain reference."""
    training = Training(recipe, run)                                            # prepares text and validation set
    torch.manual_seed(recipe.seed)
    model = plain_model(recipe, training.tokenizers.target.vocab_size).to(training.device).train()
    yield from train_steps(model, training.corpus, steps_of(training.corpus, recipe, count), recipe.training)
    model.eval()
    yield validation_loss(training, lambda batch: plain_loss(model, batch, 0.0, "sum"))


def validation_loss(training: Training, loss: Callable[[Batch], Tensor]) -> tuple[float, int]:
    """The summed loss of the validation set, and its target tokens."""
    corpus = training.validation.corpus
    batches = [gather(corpus, indices) for indices in batches_in_order(corpus.target.lengths, 4096)]
    with torch.inference_mode():
        total = sum(loss(batch.to(training.device)).item() for batch in batches)
    return total, sum(batch.target_count for batch in batches)


def learn(system: str, recipe: Recipe, run: Path, count: int, every: int) -> dict[str, Any]:
    """Train one system; its mean loss over each `every` steps, its validation loss and its seconds."""
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
    raise AssertionError("every system ends with its validation loss")


def train_all(systems: Sequence[str], recipe: Recipe, run: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all systems, each in a process of its own; saved after each, so that an interruption keeps what is done."""
    done: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        waiting = [pool.submit(learn, system, recipe, run, arguments.steps, arguments.every) for system in systems]
        try:
            for one in as_completed(waiting):
                done[one.result()["system"]] = one.result()
                save([done[system] for system in systems if system in done], recipe, arguments)
        finally:
            pool.shutdown(cancel_futures=True)
    return [done[system] for system in systems]


def end_with_parent() -> None:
    """Let this process end with the one that started it, however that ends: a system takes hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def table(rows: list[dict[str, Any]]) -> str:
    """Losses side by side as Markdown: some steps, then the validation set."""
    steps = [step for step, _ in rows[0]["curve"]]
    shown = sorted({steps[round(place * (len(steps) - 1) / 7)] for place in range(8)})
    lines = ["| step | " + " | ".join(row["system"] for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for step in shown:
        lines.append(f"| {int(step):,} | " + " | ".join(f"{dict(row['curve'])[step]:.3f}" for row in rows) + " |")
    lines.append("| validation | " + " | ".join(f"{row['validation']:.3f}" for row in rows) + " |")
    return "\n".join(lines)


def draw(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """The training losses over the steps."""
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
    content = {"benchmark": "learning", "surroundings": surroundings(), "options": options, "rows": rows}
    file.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    draw(file.with_suffix(".png"), f"{arguments.shape}, {recipe.training.batch_tokens:,} target tokens a step", rows)


def main() -> int:
    """The command; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "recipes" / "multi30k" / "data", metavar="DIRECTORY",
                        help="Multi30k (default: where its recipe looks for it)")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="size of the model (default: tiny)")
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="optimizer steps (default: 1500)")
    parser.add_argument("--every", type=int, default=50, metavar="N", help="steps a point of the curve (default: 50)")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", choices=(REFERENCE, "seq2seq fp32", "seq2seq bf16"),
                        help="which to train (default: the reference, fp32, and bf16 where the processor has it)")
    parser.add_argument("--threads", type=int, metavar="N", help="of each system (default: one a core)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="systems trained side by side (default: 1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="as of seq2seq train, for all systems")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="where the JSON and the plot go (default: runs/benchmarks)")
    arguments = parser.parse_args()
    if arguments.steps < arguments.every or min(arguments.every, arguments.at_once, arguments.threads or 1) < 1:
        parser.error("--every, --threads and --at-once count from 1, and --steps is at least --every")
    systems = arguments.systems or [REFERENCE, "seq2seq fp32", *["seq2seq bf16"] * has_fast_bf16(choose_device())]
    settings = [*arguments.settings, f"training.max_steps={arguments.steps}",
                *([f"training.threads={arguments.threads}"] if arguments.threads else [])]
    try:
        recipe = learning_recipe(arguments.data, arguments.shape, settings)
        with tempfile.TemporaryDirectory(prefix="seq2seq-learning-") as run:
            tokenizers = Training(recipe, Path(run)).tokenizers                 # text is prepared once, for all
            plain_model(recipe, tokenizers.target.vocab_size)                   # refuses what it lacks, at once
            rows = train_all(systems, recipe, Path(run), arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(rows))
    print("\n" + ", ".join(f"{key} {value}" for key, value in surroundings().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
