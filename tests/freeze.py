"""Print checksums of trainings and translations, to show that a change of the code changes no result.

    python tests/freeze.py WORK > before.txt          # in the old version; five to ten minutes on one core
    python tests/freeze.py WORK2 > after.txt          # in the new version, on the same machine
    diff before.txt after.txt

Toy models of every type and kind of attention are trained for 30 steps in fp32 on one thread. A fixed model, trained
for 400 steps, translates 300 lines and three documents in many ways. Only the command line is used, so that the script
runs in any version. `--only WORD` selects the checks whose name contains a word.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors.numpy import load_file

ARTICLES = {"the": "der", "a": "ein", "this": "dieser", "every": "jeder"}
ADJECTIVES = {"red": "rote", "blue": "blaue", "small": "kleine", "old": "alte", "happy": "frohe", "slow": "langsame"}
NOUNS = {"cat": "Kater", "dog": "Hund", "man": "Mann", "tree": "Baum", "table": "Tisch", "train": "Zug",
         "bird": "Vogel", "doctor": "Arzt"}
VERBS = {"sees": "sieht", "hears": "hört", "buys": "kauft", "paints": "malt", "finds": "findet"}
NAMES = ("Ada", "Berta", "Zeno", "Quirin", "Oslo", "Lima")

RECIPE = """
name: frozen
languages: {source: en, target: de}
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
  test: {small: {source: valid.en, target: valid.de}}
tokenizer: {vocab_size: 330}
model: {d_model: 32, encoder_layers: 2, decoder_layers: 2, num_heads: 4, feed_forward: 64, dropout: 0.1}
training: {batch_tokens: 256, learning_rate: 0.005, warmup_steps: 10, max_steps: 30, validate_every: 15, log_every: 5,
           ema_decay: 0.9, precision: fp32, threads: 1}
decoding: {beam_size: 3, max_length_offset: 5}
"""

RNN = ["model={type: rnn, d_model: 32, encoder_layers: 2, decoder_layers: 2, num_heads: 4, dropout: 0.1}"]
POINTER = ["model={type: pointer, d_model: 32, encoder_layers: 2, decoder_layers: 2, dropout: 0.1}"]
LANGUAGE_MODEL = ["model={type: language_model, d_model: 32, decoder_layers: 2, num_heads: 4, feed_forward: 64, "
                  "dropout: 0.1}"]
HARD = "training.label_smoothing=0"
BACK = ("data.train=[{source: train.en, target: train.de}, "
        "{target: valid.de, translated_by: WORK/reverse, sampling: true}]")
TRAININGS: dict[str, list[str]] = {
    "post-norm": [],
    "pre-norm": ["model.norm=pre", "model.activation=gelu"],
    "window": ["model.window=3"],
    "relu attention": ["model.normalize=relu"],
    "dot": ["model.score=dot"],
    "bilinear": ["model.score=bilinear", "model.activation=silu"],
    "additive": ["model.score=additive"],
    "hard": ["model.selection=hard"],
    "structured": ["model.selection=structured"],
    "learned positions": ["model.positions=learned", "model.tied_embeddings=none", "tokenizer.joint=false"],
    "positions and start of fairseq": ["model.positions=fairseq", "model.decoder_start=</s>"],
    "t5": ["model.positions=relative", "model.norm=pre", "model.norm_type=rms", "model.gated=true", "model.bias=false",
           "model.head_size=6", "model.score=dot", "model.tied_embeddings=inputs", "model.activation=gelu_tanh",
           "model.decoder_start=<unk>"],
    "norm of the embedding": ["model.embedding_norm=true", "model.norm=pre"],
    "tied decoder layers": ["model.tied_decoder_layers=true", "model.output_bias=true"],
    "copy": ["model.copy=true", HARD],
    "concatenated context": ["data.context=2"],
    "hierarchical context": ["data.context=2", "model.context=hierarchical"],
    "rnn": RNN,
    "rnn lstm, input feeding": [*RNN, "model.cell=lstm", "model.input_feeding=true", "model.score=bilinear"],
    "rnn hard": [*RNN, "model.selection=hard"],
    "rnn structured": [*RNN, "model.selection=structured"],
    "rnn copy": [*RNN, "model.copy=true", HARD],
    "pointer": [*POINTER, "tokenizer.type=words", "tokenizer.vocab_size=260",
                "data.train=[{source: train.numbers, target: train.order}]",
                "data.valid={source: valid.numbers, target: valid.order}",
                "data.test={small: {source: valid.numbers, target: valid.order}}",
                "languages={source: numbers, target: order}", "metrics=[exact]", "training.best_metric=exact", HARD],
    "language model": [*LANGUAGE_MODEL, "languages={target: de}", "data.train=[{text: train.de}]",
                       "data.valid={text: valid.de}", "data.test={small: {text: valid.de}}",
                       "training.best_metric=perplexity", HARD],
    "accumulation": ["training.accumulation=3"],
    "consistency": ["training.consistency=5"],
    "cutoff": ["training.consistency=3", "training.consistency_cutoff=0.05"],
    "guided alignment": ["training.guided_alignment=0.05"],
    "subword sampling": ["tokenizer.subword_sampling=0.1"],
    "muon": ["training.optimizer=muon"],
    "adamw, cosine": ["training.optimizer=adamw", "training.weight_decay=0.01", "training.schedule=cosine"],
    "averages": ["training.average={kind: last, count: 2}", "training.early_stopping=3"],
    "augmentation": ["data.augmentation={upper_case: 0.1, title_case: 0.1, typos: 0.1, no_final_stop: 0.1, tags: 0.1, "
                     "placeholders: 0.1, noise: 0.1, terms: 0.1}"],
    "cleaning": ["data.cleaning={remove_identical: true, remove_duplicates: true, remove_damaged: true, "
                 "min_number_agreement: 0.5, max_length_deviation: 2, language: sides}"],
    "two target languages": ["data.train=[{source: train.en, target: train.de}, "
                             "{source: train.de, target: train.en, languages: {source: de, target: en}}]"],
    "bpe": ["tokenizer.type=bpe", "data.train=[{source: train.en, target: train.de, weight: 1.5, tag: <x>}]"],
    "words": ["tokenizer.type=words", "tokenizer.vocab_size=auto"],
    "fine-tuning": ["training.start_from=WORK/fixed", "model.d_model=64", "model.feed_forward=128"],
    "back-translation": [BACK],
}
FIXED = ["model.d_model=64", "model.feed_forward=128", "training.max_steps=400", "training.batch_tokens=1024",
         "training.validate_every=200", "training.warmup_steps=50"]
LONG = "training.max_steps=200"
MODELS = {                                                                      # trained before everything else
    "fixed": FIXED,
    "second": [*FIXED, "seed=2", "tokenizer.taken_from=WORK/fixed", LONG],
    "lm": [*TRAININGS["language model"], "tokenizer.taken_from=WORK/fixed", LONG],
    "reverse": ["languages={source: de, target: en}", "data.train=[{source: train.de, target: train.en}]",
                "data.valid={source: valid.de, target: valid.en}",
                "data.test={small: {source: valid.de, target: valid.en}}", LONG],
    "aligned": [*FIXED, "training.guided_alignment=0.05", LONG],
}
JSONL = ["--format", "jsonl"]
TRANSLATIONS: dict[str, list[str]] = {
    "greedy": ["--beam-size", "1"],
    "beam 5": ["--beam-size", "5"],
    "n-best": ["--beam-size", "5", "--n-best", "4", *JSONL, "--word-confidence"],
    "sampling": ["--sampling", "--top-p", "0.9", "--n-best", "2", *JSONL],
    "top-k sampling": ["--sampling", "--temperature", "0.7", "--top-k", "7", "--min-p", "0.01"],
    "prefix": ["--prefix-file", "WORK/prefixes.de"],
    "require": ["--require-file", "WORK/phrases.de", "--beam-size", "6"],
    "forbid": ["--forbid", "Hund", "--forbid", "rote"],
    "no safety net": ["--no-safety-net", "--length-penalty", "0.6"],
    "n-gram blocking, coverage, wu": ["--no-repeat-ngram", "2", "--coverage-penalty", "0.2",
                                      "--length-penalty-form", "wu"],
    "lengths": ["--min-length", "4", "--max-length", "6", "--patience", "2"],
    "diverse": ["--beam-size", "6", "--diverse-groups", "3", "--n-best", "3", *JSONL],
    "mbr": ["--mbr", "8", "--sampling"],
    "ensemble": ["--ensemble", "WORK/second"],
    "fusion": ["--fusion", "WORK/lm", "--fusion-weight", "0.2"],
    "ensemble, fusion, prefix": ["--ensemble", "WORK/second", "--fusion", "WORK/lm", "--prefix-file",
                                 "WORK/prefixes.de"],
    "glossary": ["--glossary", "WORK/terms.tsv"],
    "workers": ["--workers", "2"],
    "small batches": ["--batch-tokens", "40"],
}
DOCUMENTS = {
    "page.html": "<!DOCTYPE html><html lang=en><head><title>The red dog</title></head><body><p>The <b>red</b> dog sees "
                 "<i>a small cat</i>. This man buys 12 tables.</p><p title='Every old tree'>a <a href='x'>bird</a> "
                 "hears Ada</p><code>a dog</code></body></html>\n",
    "page.md": "# The old tree\n\nThe **red** dog sees *a cat*.\n\n- a doctor buys `x = 1`\n- this [man](x) paints\n\n"
               "| a bird | the train |\n|---|---|\n| every dog | 3 cats |\n",
    "film.srt": "1\n00:00:01,000 --> 00:00:03,000\nThe red dog sees\nthe small cat.\n\n2\n00:00:04,000 --> "
                "00:00:05,500\n<i>A man buys a tree.</i>\n",
    "app.po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "The red dog sees %d cats"\n'
              'msgstr ""\n',
}


def main() -> None:
    """Run all checks, and print a line with name and checksum for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="directory for text, runs and outputs; models in it are used again")
    parser.add_argument("--only", default="", metavar="WORD", help="only checks whose name contains WORD")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    write_texts(work)
    for name, settings in MODELS.items():
        print_line(f"model {name}", lambda name=name, settings=settings: trained(work, work / name, settings))
    for name, line in checks(work):
        if arguments.only in name:
            print_line(name, line)


def checks(work: Path) -> Iterator[tuple[str, object]]:
    """Yield the name of each check, and the function that returns its checksum."""
    for name, settings in TRAININGS.items():
        run = work / "trainings" / name.replace(" ", "_").replace(",", "")
        yield f"train {name}", lambda run=run, settings=settings: trained(work, run, settings)
    test, machine = str(work / "test.en"), ["--threads", "1", "--precision"]
    for precision in ("fp32", "int8"):
        for name, options in TRANSLATIONS.items():
            call = ["translate", "WORK/fixed", test, *machine, precision, *options]
            yield f"translate {precision} {name}", lambda call=call: output_of(work, call)
        for file in DOCUMENTS:
            for name, options in (("", []), (" with glossary", ["--glossary", "WORK/terms.tsv"])):
                call = ["translate", "WORK/aligned", str(work / file), *machine, precision, *options]
                yield f"document {precision} {file}{name}", lambda call=call: output_of(work, call)
        call = ["translate", "WORK/trainings/concatenated_context", test, *machine, precision]
        yield f"translate {precision} with context", lambda call=call: output_of(work, call)
    for kind in ("hierarchical_context", "copy", "rnn", "rnn_hard", "two_target_languages", "structured", "pointer"):
        text = "valid.numbers" if kind == "pointer" else "test.en"
        call = ["translate", f"WORK/trainings/{kind}", str(work / text), *machine, "fp32"]
        yield f"translate fp32 {kind}", lambda call=call: output_of(work, call)
    valid = [str(work / "valid.en"), str(work / "valid.de")]
    for name, call in {
        "score": ["score", "WORK/fixed", *valid, "--precision", "fp32", "--threads", "1"],
        "score of text": ["score", "WORK/lm", valid[1], "--precision", "fp32", "--threads", "1"],
        "align": ["align", "WORK/aligned", *valid],
        "evaluate": ["evaluate", "WORK/fixed", "--source", valid[0], "--reference", valid[1], "--threads", "1"],
        "generate": ["generate", "WORK/lm", "--samples", "5", "--threads", "1"],
        "check": ["check", str(work / "recipe.yaml")],
        "average": ["average", "WORK/fixed", "--output", "WORK/averaged"],
        "export to huggingface": ["export", "WORK/fixed", "--to", "huggingface", "--output", "WORK/exported_hf"],
        "export to ctranslate2": ["export", "WORK/fixed", "--to", "ctranslate2", "--output", "WORK/exported_ct2"],
        "import from huggingface": ["import", "--from", "huggingface", "WORK/exported_hf", "--output", "WORK/imported"],
    }.items():
        if name == "check":                                 # its output has times and memory: only the exit code counts
            yield name, lambda call=call: str(run_command(work, call) is not None)
        elif name == "average":
            yield name, lambda call=call: averaged(work, call)
        elif name.split()[0] in ("export", "import"):
            yield name, lambda call=call: exported(work, call)
        else:
            yield name, lambda call=call: output_of(work, call)


def print_line(name: str, check) -> None:
    """Print the name of a check and its checksum."""
    try:
        result = check()
    except Exception as error:
        result = f"FAILED {type(error).__name__}: {error}"
    print(f"{name:45} {result}", flush=True)


def sentence(generator: random.Random) -> tuple[str, str]:
    """Return an English sentence and its German translation."""
    def phrase() -> tuple[str, str]:
        if generator.random() < 0.15:
            name = generator.choice(NAMES)
            return name, name
        if generator.random() < 0.1:
            number, noun = str(generator.randint(2, 99)), generator.choice(list(NOUNS))
            return f"{number} {noun}s", f"{number} {NOUNS[noun]}"
        words = [generator.choice(list(table.items())) for table in (ARTICLES, ADJECTIVES, NOUNS)]
        if generator.random() < 0.5:
            del words[1]
        return " ".join(english for english, _ in words), " ".join(german for _, german in words)

    verb = generator.choice(list(VERBS))
    (subject, subjekt), (thing, objekt) = phrase(), phrase()
    english, german = f"{subject} {verb} {thing}.", f"{subjekt} {VERBS[verb]} {objekt}."
    return english[0].upper() + english[1:], german[0].upper() + german[1:]


def write_texts(work: Path) -> None:
    """Write recipe, corpora, constraints and documents."""
    generator = random.Random(7)
    for name, count in (("train", 3000), ("valid", 60), ("test", 300)):
        pairs = [sentence(generator) for _ in range(count)]
        if name == "test":                                  # also empty, long, unknown and strange lines
            pairs[3] = ("", "")
            pairs[10] = (" ".join(english for english, _ in pairs[20:60]), "")
            pairs[11] = ("Ein völlig anderer Satz: 3.14 → https://example.org/x?y=1 😀", "")
            pairs[12] = ("  The dog\u2028sees  the cat.\t", "")
        for side, language in enumerate(("en", "de")):
            (work / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
        numbers = [generator.sample(range(100), generator.randint(2, 9)) for _ in range(count)]
        orders = [[1 + row.index(number) for number in sorted(row)] for row in numbers]
        for suffix, rows in (("numbers", numbers), ("order", orders)):
            (work / f"{name}.{suffix}").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
        if name == "test":
            first = [german.split()[:2] if number % 3 == 0 else [] for number, (_, german) in enumerate(pairs)]
            (work / "prefixes.de").write_text("".join(" ".join(words) + "\n" for words in first), encoding="utf-8")
            last = [german.rstrip(".").split()[-1:] if number % 4 == 0 else []
                    for number, (_, german) in enumerate(pairs)]
            (work / "phrases.de").write_text("".join("\t".join(words) + "\n" for words in last), encoding="utf-8")
    (work / "terms.tsv").write_text("dog\tDackel\ncat\tKatze\nAda\tAda\tdo not translate\n", encoding="utf-8")
    for name, text in DOCUMENTS.items():
        (work / name).write_text(text, encoding="utf-8")
    (work / "recipe.yaml").write_text(RECIPE)


def run_command(work: Path, call: Sequence[str]) -> bytes:
    """Run a command of seq2seq and return its standard output."""
    arguments = [argument.replace("WORK", str(work)) for argument in call]
    root = str(Path(__file__).parents[1])
    environment = {"PYTHONPATH": root, **os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-m", "seq2seq", *arguments], capture_output=True, env=environment, cwd=work)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


def short(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def output_of(work: Path, call: Sequence[str]) -> str:
    """Return the checksum of a command's standard output."""
    return short(run_command(work, call))


def best_of(run: Path) -> Path:
    """Return the best bundle of a run, in this version or in an earlier one."""
    best = run / "best"
    return best if best.is_dir() else run / "bundles" / best.read_text().strip()


def checksum_of_weights(directory: Path) -> str:
    """Return the checksum of all tensors in the safetensors files of a directory."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob("model*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()[:16]


def trained(work: Path, run: Path, settings: Sequence[str]) -> str:
    """Train, unless the run is finished. Return checksums of the last weights, the best model, log and test scores."""
    call = ["train", str(work / "recipe.yaml"), "--run-dir", str(run)]
    for setting in settings:
        call += ["--set", setting]
    if not (run / "finished.txt").exists():
        scores = run_command(work, call)
        (run / "finished.txt").write_bytes(scores)
    last = max((run / "checkpoints").glob("step-*"))
    clock = ("seconds", "peak_memory", "tokens_per_second", "computing", "waiting", "reading", "validating", "saving")
    log = [{key: value for key, value in json.loads(line).items() if key not in clock}
           for line in (run / "metrics.jsonl").read_text().splitlines()]
    return " ".join([checksum_of_weights(last), checksum_of_weights(best_of(run)), short(json.dumps(log).encode()),
                     short((run / "finished.txt").read_bytes())])


def averaged(work: Path, call: Sequence[str]) -> str:
    """Return the checksum of the weights that `seq2seq average` writes."""
    run_command(work, call)
    return checksum_of_weights(work / "averaged")


def exported(work: Path, call: Sequence[str]) -> str:
    """Return the checksum of the model that an export or import writes."""
    directory = Path(call[-1].replace("WORK", str(work)))
    run_command(work, call)
    if files := sorted(directory.glob("model.bin")):
        return short(files[0].read_bytes())
    return checksum_of_weights(directory)


if __name__ == "__main__":
    main()
