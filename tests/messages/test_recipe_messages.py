"""Messages about wrong recipes. Each names the file and the line, or the `--set` option."""

from contextlib import chdir
from functools import partial
from pathlib import Path

from catalogue import Catalogue
from small_recipe import RECIPE, write_small_recipe

from seq2seq.recipe import load_recipe

messages = Catalogue("recipe")
OTHER_FILES = ("a.tsv", "pairs.csv", "pairs.tsv", "pairs.jsonl", "pairs.ods")
TRAIN = "{source: train.de, target: train.en}"

# Added to the recipe as line 10.
ADDED = [
    "training: {warmup: 5}", "beam_size: 3", "max_steps: 3", "colour: red",
    # Numbers and choices.
    "training: {max_steps: 1e5}", "training: {max_steps: '7'}", "training: {max_steps: !!bool x}",
    "training: {max_steps: -_}", "training: {max_steps: true}", "training: {max_steps: 0}",
    "training: {learning_rate: fast}", "training: {learning_rate: .inf}", "training: {learning_rate: NaN}",
    "training: {label_smoothing: -inf}", "training: {label_smoothing: 1}", "training: {gradient_clip: -1}",
    "training: {checkpoint_minutes: -1}", "training: {threads: inf}", "seed: many",
    "training: {betas: [0.9]}", "training: {betas: [0.1, 0.2, 0.3]}", "training: {betas: [0.1, x]}",
    "training: {betas: 0.9}", "training:", "training: {average: last}", "training: {optimizer: adm}", "model: [1]",
    "tokenizer: {joint: no}", "tokenizer: {vocab_size: 8k}", "tokenizer: {vocab_size: 259}",
    "tokenizer: {vocab_size: 300.5}", "tokenizer: {vocab_size: }", "model: {window: 0}",
    # Values that do not fit each other.
    "model: {num_heads: 3}", "model: {d_model: 7, num_heads: 7}", "model: {selection: hard, normalize: relu}",
    "model: {type: rnn, d_model: 15, num_heads: 3}", "model: {type: pointers}", "model: {score: [1]}",
    "model: {score: adative}", "cell: lstm", "training: {guided_alignment: 0.1}\nmodel: {type: rnn}",
    "model: {type: rnn, window: 3}", "model: {type: rnn, norm: pre}", "model: {cell: lstm}",
    "model: {dropout: 0}\ntokenizer: {joint: false}", "model: {max_positions: 64}",
    "tokenizer: {type: words, subword_sampling: 0.1}", "model: {type: pointer}\ntokenizer: {type: unigram}",
    "training: {label_smoothing: 0.1}\nmodel: {type: pointer}\ntokenizer: {type: words}",
    "model: {copy: true, tied_embeddings: none}\ntokenizer: {joint: false}\ntraining: {label_smoothing: 0}",
    "training: {label_smoothing: 0.1}\nmodel: {copy: true}",
    "model: {type: pointer, copy: true}\ntokenizer: {type: words}\ntraining: {label_smoothing: 0}",
    *(f"training: {{consistency: 5, label_smoothing: 0}}\nmodel: {{{model}}}"
      for model in ("dropout: 0", "copy: true", "selection: hard", "type: pointer")),
    "training: {best_metric: exact}", "metrics: []", "metrics: [bleu, wer]", "metrics: [bleu, perplexity]",
    "decoding: {beam_size: 3, n_best: 5}", "expected: {flickr: {blue: [1, 2]}}", "expected: {news: {bleu: [1, 2]}}",
    "expected: {flickr: {bleu: [2, 1]}}", "expected: {flickr: {bleu: [101, 102]}}", "name: other",
    # Paths.
    "model: {base: none.yaml}", "model: {base: smal}", "model: {base: 3}", "tokenizer: {taken_from: data/val.en}",
]
# Replaces the training corpus in line 6.
CORPORA = [
    "{source: train.de}", "{source: train.de, target: 2}", "{target: train.en}", "{file: a.tsv, hub: b, split: c}",
    "{source: train.de, target: train.en, split: x}", "{source: train.de, target: train.en, header: true}",
    "{target: train.en, translated_by: ., header: true}", "{file: pairs.jsonl, header: true, source: de, target: en}",
    "{file: pairs.ods}", "{hub: a/b, split: c, translated_by: .}", "{target: 2, translated_by: .}",
    "{source: train.de, target: train.en, sampling: true}", "{file: pairs.tsv, markup: true}",
    "{source: train.de, target: train.en, tag: ' '}", "{source: train.de, target: train.en, tag: law}",
    "{hub: wmt/wmt14, source: de, target: en}",
    "{hub: wmt/wmt14, split: train}", "{file: pairs.jsonl, source: 1, target: 2}", "{file: pairs.tsv, source: 1}",
    "{file: pairs.tsv, source: de, target: en}", "{file: pairs.csv, source: de, target: en}",
    "{file: pairs.csv, header: true}", "{file: pairs.tsv, source: 0, target: 1}", "{source: 1.5, target: train.en}",
    "{source: train.de, target: train.en, weight: 0}", "{source: train.de, target: train.en, limit: x}", "train.de",
]
# Replace a part of the recipe.
REPLACED = [
    ("name: small", "name: ../x"), ("source: de,", "source: d!,"), ("source: de,", "source: 3,"),
    ("source: de,", "source: portuguese,"), ("source: de,", "source: klingonisch,"), ("flickr:", "a b:"),
    ("val.en", "vall.en"), ("val.en", "folder"), ("root: data", "root: date"), ("val.en", "val.en, weight: 2"),
    ("flickr.en", "flickr.en, weight: 3"), (f"\n    - {TRAIN}", " []"), (RECIPE, "name: small"),
    ("target: en}\n", "}\n"),
]
# Text that is no recipe.
TEXTS = {
    "nothing": "", "a comment alone": "# nothing\n", "a list": "- a\n- b\n", "a tab": "name: a\ndata:\n\troot: x\n",
    "a section as key": "name: a\n? {b: c}\n: d\n", "a missing brace": "name: a\nlanguages: {source: de\ndata: x\n",
    "500 open brackets": "a: " + "[" * 500, "an alias that contains itself": "a: &a {b: *a}\n",
    "aliases that expand to millions of values": "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 11)}]\n" for n in range(7)),
}
OPTIONS = [
    "training.max_step=5", "training.max_steps=five", "training", "=5", "decoding=[", "data.train.1.limit=5",
    "name.first=x", "data.valid={source: data/val.de, targt: data/val.en}", "model={base: size.yaml}",
    "training.betas.0=0.5", "data.test.news.source=gone.de", "model.base=[gone.yaml]", 'name="\\udced"',
    "data.valid={source: /nowhere/gone.de, target: data/val.en}", "data.valid={source: val.de, target: data/val.en}",
    "model.base=size.yaml", "training.start_from=trained", "tokenizer.taken_from=trained",
    "training.consistency_cutoff=0.05",
]
# Files that model.base names in line 10.
BASES = {
    "a list": "[1, 2]", "an empty file": "", "no YAML": "model: {",
    "several mistakes": "model:\n  base: other.yaml\n  d_modell: 96\ntraining: []\ndecoding:\n  beam_size: 3\n",
    "a value that does not fit the type": "model:\n  norm: pre\n",
    "a value that does not fit another": "training:\n  label_smoothing: 0.3\n",
}


def refused(folder: Path, text: str = RECIPE, *settings: str, path: str = "recipe.yaml") -> None:
    """Load a wrong recipe in a directory with the data of the correct one."""
    write_small_recipe(folder)
    (folder / "data" / "folder").mkdir()
    for name in OTHER_FILES:
        (folder / "data" / name).touch()
    (folder / "recipe.yaml").write_text(text)
    with chdir(folder):
        load_recipe(path, settings)


def option_refused(folder: Path, settings: str) -> None:
    """Load the recipe with wrong `--set` options from a directory beside it."""
    (folder / "here").mkdir()
    (folder / "here" / "trained").mkdir()
    (folder / "here" / "size.yaml").write_text("model: {d_model: 96}\n")
    write_small_recipe(folder / "here")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "data").symlink_to("../here/data")
    with chdir(folder / "elsewhere"):
        load_recipe("../here/recipe.yaml", [settings])


def base_refused(folder: Path, base: str) -> None:
    (folder / "size.yaml").write_text(base)
    type = "rnn" if "norm" in base else "transformer"
    copy = str("smoothing" in base).lower()
    refused(folder, f"{RECIPE}model: {{base: size.yaml, type: {type}, copy: {copy}}}\nwrong: 1\n")


for added in ADDED:
    messages.add(added.replace("\n", "; "), partial(refused, text=f"{RECIPE}{added}\n"))
for corpus in CORPORA:
    messages.add(f"train: {corpus}", partial(refused, text=RECIPE.replace(TRAIN, corpus)))
for old, new in REPLACED:
    messages.add(f"{new.strip()} in place of {'all' if old == RECIPE else old.strip()}",
                 partial(refused, text=RECIPE.replace(old, new)))
for name, text in TEXTS.items():
    messages.add(f"not a recipe: {name}", partial(refused, text=text))
for settings in OPTIONS:
    messages.add(f"--set {settings}", partial(option_refused, settings=settings))
for name, base in BASES.items():
    messages.add(f"model.base: {name}", partial(base_refused, base=base))
for path in ("recipe.yml", "data", "."):
    messages.add(f"the path {path}", partial(refused, path=path))


@messages
def several_mistakes_in_file_and_options(folder: Path) -> None:
    text = RECIPE.replace("val.en", "vall.en") + "training:\n  learning_rat: 0.1\n  max_steps: many\n"
    refused(folder, text, "training.max_step=5", "training.max_steps=five")


@messages
def a_file_that_data_root_would_have_found(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "a").touch()
    refused(folder, RECIPE, "data.train=[{source: a, target: b}]", "data.root=mine")


@messages
def a_recipe_that_is_not_utf8(folder: Path) -> None:
    (folder / "latin.yaml").write_bytes("name: a\n# für".encode("latin-1"))
    refused(folder, path="latin.yaml")


@messages
def a_value_of_the_model_to_start_from_that_does_not_fit(folder: Path) -> None:
    (folder / "trained").mkdir()
    (folder / "trained" / "recipe.yaml").write_text("model: {type: rnn, cell: lstm}\n")
    refused(folder, f"{RECIPE}model: {{type: transformer}}\ntraining: {{start_from: trained}}\n")


test_message, test_every_message_belongs_to_a_case = messages.tests()
