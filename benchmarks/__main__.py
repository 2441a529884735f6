"""`python -m benchmarks`: both benchmarks as tables, and as JSON in runs/benchmarks/."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import surroundings
from seq2seq.corpus import read_corpus
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
# small is the shape of recipes/multi30k; tiny shows in seconds that everything runs.
SHAPES = {
    "small": {"layers": 3, "d_model": 256, "feed_forward": 1024, "vocab_size": 8000, "batch_tokens": 4096},
    "tiny": {"layers": 1, "d_model": 32, "feed_forward": 64, "vocab_size": 300, "batch_tokens": 256},
}


def benchmark_recipe(data: Path, shape: str, threads: int | None, check_files: bool = True) -> Recipe:
    """Multi30k from `data`, or the phrasebook where there is no Multi30k and none was asked for."""
    sizes = dict(SHAPES[shape])
    path, root = RECIPES / "multi30k" / "de_en.yaml", data
    if not data.exists() and data == RECIPES / "multi30k" / "data":
        path, root = RECIPES / "phrasebook" / "en_zh.yaml", ROOT / "runs" / "benchmarks" / "phrasebook"
        sizes["vocab_size"] = 2000                                             # all that its few words give
        if not (root / "test.zh").exists():
            subprocess.run([sys.executable, str(RECIPES / "phrasebook" / "generate.py"), str(root)], check=True)
    return load_recipe(path, [
        f"data.root={root}", f"tokenizer.vocab_size={sizes['vocab_size']}", f"model.d_model={sizes['d_model']}",
        f"model.feed_forward={sizes['feed_forward']}", "model.num_heads=4", "model.dropout=0.3",
        f"model.encoder_layers={sizes['layers']}", f"model.decoder_layers={sizes['layers']}",
        f"training.batch_tokens={sizes['batch_tokens']}", "training.ema_decay=0.0",
        *([f"training.threads={threads}"] if threads else []),
    ], check_files)


def show(title: str, unit: str, rows: list[dict[str, Any]]) -> None:
    """A table: medians, with the lowest and highest in brackets."""
    print(f"\n{title}\n\n{'':24}{unit + ' a second':>28}{'ratio':>22}{'peak MB':>10}{'same':>8}")
    for row in rows:
        rate = "{median:,.0f} ({lowest:,.0f} … {highest:,.0f})".format(**row["rate"])
        ratio = "{median:.2f} ({lowest:.2f} … {highest:.2f})".format(**row["ratio"])
        same = f"{row['same']:.1%}" if "same" in row else ""
        print(f"{row['system']:24}{rate:>28}{ratio:>22}{row['memory']:>10,.0f}{same:>8}")


def main() -> int:
    """The command; an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", formatter_class=argparse.RawTextHelpFormatter,
        description="Speed and memory of training and decoding, against Hugging Face transformers.",
        epilog="examples:\n  python -m benchmarks\n  python -m benchmarks decoding --model runs/multi30k_de_en\n"
               "  python -m benchmarks training --shape tiny --steps 2 --repetitions 1")
    parser.add_argument("which", nargs="*", metavar="training decoding", help="which to run (default: both)")
    parser.add_argument("--data", type=Path, default=RECIPES / "multi30k" / "data", metavar="DIRECTORY",
                        help="Multi30k (default: where its recipe looks for it, or else the phrasebook)")
    parser.add_argument("--model", type=Path, help="decode with a trained model: a run or a bundle (default: random)")
    parser.add_argument("--shape", choices=SHAPES, default="small", help="size of a model that is not given")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="training steps a round (default: 10)")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N", help="to translate (default: 1000)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="rounds that count (default: 5)")
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU (default: one a core)")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks", metavar="DIRECTORY",
                        help="where training.json and decoding.json go (default: runs/benchmarks)")
    arguments = parser.parse_args()
    which = arguments.which or ["training", "decoding"]
    if unknown := set(which) - {"training", "decoding"}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are training and decoding")
    if min(arguments.steps, arguments.sentences, arguments.repetitions, arguments.threads or 1) < 1:
        parser.error("--steps, --sentences, --repetitions and --threads count from 1")
    try:
        recipe = benchmark_recipe(arguments.data, arguments.shape, arguments.threads)
        with tempfile.TemporaryDirectory(prefix="seq2seq-benchmarks-") as run:
            for name in which:
                report(name, recipe, Path(run), arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def report(name: str, recipe: Recipe, run: Path, arguments: argparse.Namespace) -> None:
    """Run a benchmark, print its table and write its file."""
    from benchmarks import decoding, training

    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    if name == "training":
        rows = training.measure(recipe, run, arguments.steps, arguments.repetitions)
        title, unit = f"Training, {recipe.training.batch_tokens:,} target tokens a step", "tokens"
    else:
        (test,) = recipe.data.test.values()
        sentences = [source for _, source, _ in read_corpus(test, recipe.data_directory)][:arguments.sentences]
        rows = decoding.measure(recipe, run, arguments.model, sentences, arguments.repetitions)
        title, unit = f"Decoding, {len(sentences):,} sentences of {recipe.name}", "sentences"
    where = surroundings()
    show(title, unit, rows)
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()))
    arguments.output.mkdir(parents=True, exist_ok=True)
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    content = {"benchmark": name, "surroundings": where, "options": options, "unit": f"{unit} a second", "rows": rows}
    (arguments.output / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
