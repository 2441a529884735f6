"""Train models of different architectures and attention functions on the same batches, and compare them.

    python recipes/foundations/compare.py                                      # all systems, one after another
    python recipes/foundations/compare.py --steps 5000 "RNN, additive"         # one system with more steps
    python recipes/foundations/compare.py --set data.root=DIRECTORY            # with the text in another directory

A system with a finished run is not trained again. Prints a Markdown table, and writes the numbers to
runs/foundations/comparison.json and the training losses to comparison.png.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from seq2seq.storage.checkpoints import best_bundle

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "runs" / "foundations"

# File that train() writes to the directory of a run when the run has finished.
PROCESSOR_TIME = "processor_time.json"
# The recurrent model of Bahdanau et al. 2015 has one layer on each side and one attention head.
RNN = ["model.type=rnn", "model.encoder_layers=1", "model.decoder_layers=1", "model.num_heads=1"]
SYSTEMS: dict[str, list[str]] = {
    "Transformer, scaled dot": [],
    "RNN, additive": RNN,
    "RNN, dot": [*RNN, "model.score=dot"],
    "RNN, hard": [*RNN, "model.selection=hard"],
    "RNN, structured": [*RNN, "model.selection=structured"],
    "Transformer, structured": ["model.selection=structured"],
    "Transformer, dot": ["model.score=dot"],
    "Transformer, bilinear": ["model.score=bilinear"],
    "Transformer, additive": ["model.score=additive"],
    "Transformer, learned positions": ["model.positions=learned"],
    "Transformer, window of 3": ["model.window=3"],
}


def main() -> None:
    """Train the requested systems, and print the table of all finished runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"one of: {'; '.join(SYSTEMS)} (default: all)")
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="training steps (default: 1500)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of CPU threads (default: 1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="override a key of the recipe for all systems, as in seq2seq train")
    arguments = parser.parse_args()
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"there is no system {', '.join(sorted(unknown))}")
    settings = [*arguments.settings, f"training.threads={arguments.threads}"]
    for system in arguments.systems or SYSTEMS:
        run = RUNS / f"{directory(system)}_{arguments.steps}_steps"
        if not (run / PROCESSOR_TIME).exists():
            train(system, run, arguments.steps, settings)
    measured = [read_run(file.parent) for file in sorted(RUNS.glob(f"*/{PROCESSOR_TIME}"))]
    (RUNS / "comparison.json").write_text(json.dumps(measured, indent=2) + "\n")
    draw(measured)
    print(table(measured))


def directory(system: str) -> str:
    """Return the directory name of a system."""
    return system.lower().replace(",", "").replace(" ", "_")


def train(system: str, run: Path, steps: int, settings: list[str]) -> None:
    """Train and test one system in a new process, and save its processor time, which depends little on other jobs."""
    print(f"{system}: {steps:,} steps", file=sys.stderr)
    overrides = [*SYSTEMS[system], *settings, f"training.max_steps={steps}", f"training.validate_every={steps}",
                 f"name={run.name}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-m", "seq2seq", "train", str(HERE / "base.yaml"), "--run-dir", str(run),
                    *(argument for setting in overrides for argument in ("--set", setting))],
                   check=True, stdout=subprocess.DEVNULL)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    (run / PROCESSOR_TIME).write_text(json.dumps({"seconds": seconds}) + "\n")


def read_run(run: Path) -> dict[str, Any]:
    """Return scores, sizes and the loss curve of a finished run."""
    bundle = best_bundle(run)
    assert bundle is not None                                                   # the training has ended
    metadata = json.loads((bundle / "metadata.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [record for record in records if record["kind"] == "training"]
    (scores,) = metadata["test"].values()
    return {"run": run.name, "bleu": scores["bleu"]["value"], "chrf": scores["chrf"]["value"],
            "loss": metadata["validation"]["loss"], "steps": metadata["step"], "parameters": metadata["parameters"],
            "minutes": json.loads((run / PROCESSOR_TIME).read_text())["seconds"] / 60,
            "curve": [[record["step"], record["loss"]] for record in training]}


def table(measured: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table, best system first."""
    rows = [f"| {one['run'].replace('_', ' ')} | {one['bleu']:.2f} | {one['chrf']:.2f} | {one['loss']:.3f} | "
            f"{one['steps']:,} | {one['minutes']:.1f} | {one['parameters'] / 1e6:.2f} M |"
            for one in sorted(measured, key=lambda one: -one["bleu"])]
    return "\n".join(["| system | BLEU | chrF | validation loss | steps | processor minutes | parameters |",
                      "|---|---|---|---|---|---|---|", *rows])


def draw(measured: list[dict[str, Any]]) -> None:
    """Plot the training losses of all systems over the steps."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for one in sorted(measured, key=lambda one: -one["bleu"]):
        axes.plot(*zip(*one["curve"], strict=True), linewidth=1.2,
                  label=f"{one['run'].replace('_', ' ')}: {one['bleu']:.1f} BLEU")
    axes.set(xlabel="steps", ylabel="training loss (label-smoothed, nats a token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(RUNS / "comparison.png", dpi=120)


if __name__ == "__main__":
    main()
