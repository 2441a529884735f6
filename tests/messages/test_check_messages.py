"""Errors and warnings of `check`."""

from unittest import mock

from catalogue import Catalogue

from seq2seq.check import CorpusReport, check_recipe
from seq2seq.check.given_text import corpora_of
from seq2seq.check.new_recipe import write_recipe
from seq2seq.check.results import Finding, LineShift, PairReport
from seq2seq.check.warnings import add_corpus_warnings
from seq2seq.recipe import Cleaning, load_recipe

MESSAGES = Catalogue("check")
RECIPE = """\
name: tiny
languages: {source: de, target: en}
data:
  train: [{source: train.de, target: train.en}]
  valid: {source: valid.de, target: valid.en}
  test: {first: {source: test.de, target: test.en}}
tokenizer: {vocab_size: 283}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7}
training: {batch_tokens: 11, warmup_steps: 3, max_steps: 13, precision: fp32}
"""
TEXTS = {"train": "ein Hund|a dog\neine Katze|a cat\nder Hund läuft|the dog runs\n",
         "valid": "eine Katze läuft|a cat runs\n", "test": "ein Hund läuft|a dog runs\n"}


def problems(folder, *settings, **texts):
    """Return the errors and warnings about the recipe with these settings and texts."""
    for name, lines in (TEXTS | texts).items():
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair.split('|')[side]}\n" for pair in lines.splitlines())
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE)
    with mock.patch("seq2seq.check.pair_checks.is_installed", return_value=False):         # lingua
        report = check_recipe(load_recipe(folder / "recipe.yaml", settings), folder / "run")
    return "\n".join([*(f"error: {text}" for text in report.errors), *(f"warning: {text}" for text in report.warnings)])


def recipe(name, *settings, **texts):
    """Add a case."""
    MESSAGES.add(name, lambda folder: problems(folder, *settings, **texts))


recipe("nothing is wrong")
recipe("a vocabulary without characters of the text", valid="猫が走る|a cat\n")
recipe("tokenised text", train="ein Hund|a dog , .\n" * 3 + TEXTS["train"])
recipe("subwords", train="ein Hund|a do@@ g\n" * 3 + TEXTS["train"])
recipe("identical lines", train="a dog|a dog\n" * 3 + TEXTS["train"])
recipe("damaged lines", train="ein HÃ¼nd|a dog\n" * 3 + TEXTS["train"])
recipe("HTML entities", train="ein &quot;Hund|a dog\n" * 3 + TEXTS["train"])
recipe("numbers that differ", train="7 Hunde|11 dogs\n" * 3 + TEXTS["train"])
recipe("cleaning drops most pairs", "data.cleaning.max_characters=6")
recipe("no pair has few enough pieces", "data.cleaning.max_pieces=1")
recipe("test sentences in train", test="ein Hund|a dog\n")
recipe("empty lines in a test set", test="ein Hund läuft|a dog runs\n|\n")
recipe("an empty test set", test="")
recipe("held-out sets without text", valid="|\n", test="vier Hunde|\n")
recipe("validation pairs that are too long", "model.max_positions=43", "data.cleaning.max_pieces=41",
       valid="ein Hund" * 30 + "|a dog\n")
recipe("whole words of a language without spaces", "tokenizer.type=words", "languages.source=ja")
recipe("a language by its name", "languages.source=japanese")
recipe("a direction without training pairs", "data.test.first.languages={source: da, target: en}")
recipe("few epochs of consistency training", "training.consistency=5")
recipe("many epochs", "training.max_steps=2000")
recipe("a vocabulary that is too large", "tokenizer.vocab_size=999")
recipe("a vocabulary that is too small", "tokenizer.vocab_size=262")
recipe("a weight that leaves nothing of an epoch", "data.train.0.weight=1.0e-6")
recipe("a weight that makes an epoch too long", "data.train.0.weight=1.0e+9")
recipe("duplicates that cleaning keeps", train="ein Hund|a dog\n" * 4 + TEXTS["train"])
recipe("duplicates that cleaning drops", "data.cleaning.remove_duplicates=true",
       train="ein Hund|a dog\n" * 4 + TEXTS["train"])
recipe("numbers that differ after cleaning", "data.cleaning.min_number_agreement=0.4",
       train="7 8 Hunde|7 11 dogs\n" * 3 + TEXTS["train"])
recipe("a test set with faults", test="a dog|a dog\n" * 4 + "7 HÃ¼nde|11 dogs\n" * 3)
recipe("warm-up longer than the training", "training.warmup_steps=14")
recipe("validation intervals longer than the training", "training.validate_every=14", "training.early_stopping=1",
       "training.average={kind: last, count: 2}")
recipe("temperature of one corpus", "data.temperature=2")


@MESSAGES
def a_corpus_that_cannot_be_read(folder):
    problems(folder)
    (folder / "test.en").write_text("")
    (folder / "train.de").write_bytes(b"x\n\xff\nx\n")
    return "\n".join(check_recipe(load_recipe(folder / "recipe.yaml"), folder / "run").errors)


@MESSAGES
def the_tokeniser_of_BLEU_is_not_installed(folder):
    with mock.patch("seq2seq.evaluation.scores.BLEU", side_effect=RuntimeError("no MeCab")):
        return problems(folder, "languages.target=ja")


@MESSAGES
def the_disk_is_nearly_full(folder):
    with mock.patch("seq2seq.check.cost.shutil.disk_usage", return_value=mock.Mock(free=7)):
        return problems(folder)


def judged(name, role="train", **results):
    """Add a case: a corpus with these results of `PairReport`."""
    def case(folder):
        warnings = []
        report = CorpusReport(role, "a.de", pairs=100, lines=100, judgement=PairReport(pairs=100, **results))
        add_corpus_warnings(report, Cleaning(), warnings)
        return "\n".join(warnings)

    MESSAGES.add(name, case)


judged("misaligned pairs", suspects=Finding(7, [1, 2, 3, 5, 8]), misaligned=0.08)
judged("few misaligned pairs", suspects=Finding(1, [1]), misaligned=0.009)
judged("a shifted side", slip=LineShift(701, 1200, 1), suspects=Finding(), misaligned=0.0)
judged("lines of the other side", wrong_side={"target": Finding(3, [2, 3, 5])})
judged("swapped sides", other_languages={"source": "en", "target": "de"}, exchanged=True)
judged("one side in another language", other_languages={"target": "fr"})
judged("one line of the other side", wrong_side={"source": Finding(1, [1])})
judged("another language", recognised=50, wrong_language={"target": Finding(3, [2, 3, 5])})



def init(name, sources, targets, columns=(None, None), other=None):
    """Add a case: `init` for these two files, or for one table if there are no targets. other: languages of the same
    files as pairs of --other."""
    def case(folder):
        paths = [folder / "a.de", folder / "a.en"] if targets is not None else [folder / "a.tsv"]
        for path, lines in zip(paths, (sources, targets), strict=False):
            path.write_text("".join(f"{line}\n" for line in lines))
        corpora = corpora_of(paths, columns)
        return write_recipe(corpora, ("de", "en"), folder / "new", other=None if other is None else (corpora, other))

    MESSAGES.add(f"init: {name}", case)


init("another number of lines", ["x", "y"], ["x"])
init("an empty file", ["x"], [])
init("too few pairs", ["x"], ["y"])
init("not translated", ["x", "y"], ["x", "y"])
init("a table with unclear columns", ["1\tx\ty"], None)
init("one column only", ["1\tx\ty"], None, columns=("1", None))
init("columns of text files", ["x"], ["y"], columns=("1", "2"))
init("other pairs of the same languages", ["x"], ["y"], other=("de", "en"))
init("other pairs between two forms of one language", ["x"], ["y"], other=("fr", "fra"))


def pairs_of_the_test_set_as_others(folder):
    texts = [[f"a {number}" for number in range(7)], [f"b {number}" for number in range(7)],
             ["x"], ["y"]]
    paths = [folder / name for name in ("train.de", "train.en", "test.de", "test.en")]
    for path, lines in zip(paths, texts, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    own, held_out = corpora_of(paths[:2]), corpora_of(paths[2:])
    return write_recipe(own, ("de", "en"), folder / "new", valid=held_out, test=held_out,
                        other=(held_out, ("fr", "en")))


MESSAGES.add("init: other pairs with sentences of the test set only", pairs_of_the_test_set_as_others)

test_message, test_every_message_belongs_to_a_case = MESSAGES.tests()
