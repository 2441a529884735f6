"""`python -m benchmarks`: run the training, decoding and data benchmarks. The results are printed as tables, and
written as JSON and plots to runs/benchmarks/."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import environment
from seq2seq.data.corpus import as_lines, read_corpus
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
# small is the shape of recipes/multi30k, base that of Vaswani et al. 2017; tiny is for a quick test of the benchmarks.
SHAPES = {
    "small": {"layers": 3, "d_model": 256, "heads": 4, "feed_forward": 1024, "vocab_size": 8000, "batch_tokens": 4096},
    "base": {"layers": 6, "d_model": 512, "heads": 8, "feed_forward": 2048, "vocab_size": 32000, "batch_tokens": 4096},
    "tiny": {"layers": 1, "d_model": 32, "heads": 4, "feed_forward": 64, "vocab_size": 300, "batch_tokens": 256},
}
BENCHMARKS = ("training", "decoding", "data")


def benchmark_recipe(data: Path, shape: str, threads: int | None, check_files: bool = True) -> Recipe:
    """Return the recipe of a benchmark: Multi30k with its texts in the directory `data`, or the phrasebook if `data` is
    the default directory and does not exist."""
    sizes = dict(SHAPES[shape])
    path, root = RECIPES / "multi30k" / "de_en.yaml", data
    if not data.exists() and data == RECIPES / "multi30k" / "data":
        path, root = RECIPES / "phrasebook" / "en_zh.yaml", ROOT / "runs" / "benchmarks" / "phrasebook"
        sizes["vocab_size"] = min(2000, sizes["vocab_size"])                    # the phrasebook has few words
        if not (root / "test.zh").exists():
            subprocess.run([sys.executable, str(RECIPES / "phrasebook" / "generate.py"), str(root)], check=True)
    return load_recipe(path, [
        # A unigram model of such a small text has at most 20,000 pieces, so a larger vocabulary needs BPE.
        f"data.root={root}", f"tokenizer.type={'bpe' if sizes['vocab_size'] > 20000 else 'unigram'}",
        f"tokenizer.vocab_size={sizes['vocab_size']}", f"model.d_model={sizes['d_model']}",
        f"model.feed_forward={sizes['feed_forward']}", f"model.num_heads={sizes['heads']}", "model.dropout=0.3",
        f"model.encoder_layers={sizes['layers']}", f"model.decoder_layers={sizes['layers']}",
        f"training.batch_tokens={sizes['batch_tokens']}", "training.ema_decay=0.0",
        *([f"training.threads={threads}"] if threads else []),
    ], check_files)


def show(title: str, unit: str, rows: list[dict[str, Any]]) -> None:
    """Print the results as a table: medians, with the lowest and highest values in brackets."""
    print(f"\n{title}\n\n{'':40}{unit + ' a second':>28}{'ratio':>22}{'peak MB':>10}{'same':>8}{'BLEU':>8}")
    for row in rows:
        rate = "{median:,.0f} ({lowest:,.0f} … {highest:,.0f})".format(**row["rate"])
        ratio = "{median:.2f} ({lowest:.2f} … {highest:.2f})".format(**row["ratio"])
        same = f"{row['same']:.1%}" if "same" in row else ""
        bleu = f"{row['bleu']:.2f}" if "bleu" in row else ""
        print(f"{row['system']:40}{rate:>28}{ratio:>22}{row['memory']:>10,.0f}{same:>8}{bleu:>8}", flush=True)


def plot(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """Draw the ratios as a bar chart."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 1))
    names, ratios = [row["system"] for row in rows], [row["ratio"] for row in rows]
    medians = [ratio["median"] for ratio in ratios]
    deviations = [[abs(ratio["median"] - ratio[end]) for ratio in ratios] for end in ("lowest", "highest")]
    colours = ["tab:blue" if name.startswith("seq2seq") else "tab:grey" for name in names]
    axes.barh(names, medians, xerr=deviations, color=colours)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title(title)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", formatter_class=argparse.RawTextHelpFormatter,
        description="Measure speed and memory of training and decoding, compared with CTranslate2 and Hugging Face "
        "transformers.",
        epilog="examples:\n  python -m benchmarks\n  python -m benchmarks decoding --model runs/multi30k_de_en\n"
               "  python -m benchmarks training --shape tiny --steps 2 --repetitions 1")
    parser.add_argument("which", nargs="*", metavar="training decoding data", help="benchmarks to run (default: all)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="directory with Multi30k (default: as in its recipe; the phrasebook if that is missing)")
    parser.add_argument("--model", type=Path,
                        help="trained model for decoding, a run or a bundle (default: random weights)")
    parser.add_argument("--shape", choices=SHAPES, default="small", help="size without --model (default: small)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="training steps per round (default: 4)")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N",
                        help="number of sentences to translate (default: 1000)")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N",
                        help="measured rounds, after one warm-up round (default: 3)")
    parser.add_argument("--workers", type=int, default=2, metavar="N",
                        help="decoding workers with one thread each (default: 2)")
    parser.add_argument("--threads", type=int, metavar="N", help="number of CPU threads (default: one per core)")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="directory for the JSON files and the plots (default: runs/benchmarks)")
    arguments = parser.parse_args()
    names = arguments.which or BENCHMARKS
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    numbers = (arguments.steps, arguments.sentences, arguments.repetitions, arguments.workers, arguments.threads or 1)
    if min(numbers) < 1:
        parser.error("--steps, --sentences, --repetitions, --workers and --threads must be at least 1")
    try:
        recipe = benchmark_recipe(arguments.data, arguments.shape, arguments.threads)
        with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as run:
            for name in names:
                report(name, recipe, Path(run), arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def report(name: str, recipe: Recipe, run: Path, arguments: argparse.Namespace) -> None:
    """Run a benchmark, print its table and write its files."""
    from benchmarks import data, decoding, training

    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    unit = "tokens"
    if name == "training":
        rows = training.measure(recipe, run, arguments.steps, arguments.repetitions)
        title = f"Training, {arguments.shape}, {recipe.training.batch_tokens:,} target tokens a step"
    elif name == "data":
        rows = data.measure(recipe, run, arguments.repetitions)
        title = f"Data, {rows[0]['pairs']:,} pairs"
    else:
        (test,) = recipe.data.test.values()
        pairs = [pair for _, *pair in as_lines(read_corpus(test, recipe.data_directory))][:arguments.sentences]
        sentences, references = [source for source, _ in pairs], [target for _, target in pairs]
        rows = decoding.measure(recipe, run, arguments.model, arguments.shape, sentences, references,
                                arguments.repetitions, arguments.workers)
        most = max(task.sentences for task in decoding.tasks(arguments.shape, len(sentences), bool(arguments.model)))
        title, unit = f"Decoding, {arguments.shape}, {most:,} sentences of {recipe.name}", "sentences"
    measured_in = environment()
    show(title, unit, rows)
    print("\n" + ", ".join(f"{key} {value}" for key, value in measured_in.items()))
    arguments.output.mkdir(parents=True, exist_ok=True)
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    content = {"benchmark": name, "surroundings": measured_in, "options": options, "unit": f"{unit} a second",
               "rows": rows}
    file = arguments.output / f"{name}-{arguments.shape}"
    plot(file.with_suffix(".png"), title, rows)
    file.with_suffix(".json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
