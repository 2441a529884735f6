"""Language models: monolingual text, recipes, training, perplexity, and commands that refuse them."""

import gzip
import json
import math
import re
import shutil
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
from trainings import die, final_weights, interrupting, logged, same

from seq2seq.check import check_recipe
from seq2seq.cli import main
from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts, as_lines, read_corpus
from seq2seq.data.preparation import reuse_tokenizers
from seq2seq.errors import CorpusError, RecipeError, TokenizerError, UserError
from seq2seq.evaluation.scores import format_scores, perplexities
from seq2seq.recipe import Cleaning, Corpus, Languages, load_recipe, parse_recipe
from seq2seq.storage.checkpoints import best_bundle, load_bundle, newest_checkpoint
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.run import start_training, train
from seq2seq.translation.generation import generate
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator

SENTENCES = """\
The dog sleeps.
The cat drinks milk.
I do not know.
Where is the station?
It is raining again.
She reads a long letter.
We have 12 apples.
“Come in!” he said.
The train leaves at 7:45.
Nobody was at home.
My brother plays chess.
That costs too much.
The children are singing.
Please close the window.
He works in a factory.
The soup is cold.
Can you help me?
They live by the sea.
Birds fly south in autumn.
Tomorrow is Sunday.
""".splitlines()

RECIPE = """\
name: text
languages: {target: en}
data:
  train: [{text: train.en}]
  valid: {text: valid.en}
  test: {same: {text: valid.en}}
tokenizer: {vocab_size: 330}
model: {type: language_model, d_model: 32, decoder_layers: 1, num_heads: 2, feed_forward: 64, dropout: 0.0}
training:
  batch_tokens: 400
  learning_rate: 0.01
  warmup_steps: 20
  schedule: linear
  max_steps: 180
  validate_every: 180
  label_smoothing: 0.0
  precision: fp32
  threads: 1
"""


def write(folder: Path) -> None:
    for name in ("train", "valid"):
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with the recipe and its text."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finished_run(folder: Path, *settings: str) -> Path:
    write(folder)
    train(load_recipe(folder / "recipe.yaml", settings), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory.mktemp("trained"), "training.max_steps=2")


@pytest.fixture(scope="module")
def translator(trained) -> Translator:
    return Translator.load(trained, device="cpu", precision="fp32")


# Recipes


def check_refused(place: str, text: str) -> None:
    with pytest.raises(RecipeError, match=f"^recipe.yaml:{re.escape(place)}: "):
        parse_recipe(text, "recipe.yaml")


@pytest.mark.parametrize(("old", "new", "place"), [
    ("{text: train.en}", "{source: train.de, target: train.en}", "4: data.train.0"),
    ("{text: valid.en}\n", "{file: valid.tsv}\n", "5: data.valid"),
    ("{target: en}", "{source: de, target: en}", "2: languages.source"),
    ("precision: fp32", "best_metric: bleu", "17: training.best_metric"),
    ("{vocab_size: 330}", "{vocab_size: 330, joint: false}", "7: tokenizer.joint"),
    ("type: language_model", "type: transformer", "2: languages.source"),
    ("{text: train.en}", "{text: train.en, source: train.de}", "4: data.train.0"),
    ("{text: train.en}", "{target: train.en}", "4: data.train.0"),
    ("{text: train.en}", "{text: 2}", "4: data.train.0"),
    ("{text: train.en}", "{file: a.jsonl, text: 2}", "4: data.train.0"),
    ("{text: train.en}", "{file: a.tsv, text: en}", "4: data.train.0"),
])
def test_keys_that_do_not_apply_to_language_models_are_refused_with_their_line(old, new, place):
    check_refused(place, RECIPE.replace(old, new, 1))


def test_text_alone_is_for_a_language_model():
    text = RECIPE.replace("{target: en}", "{source: de, target: en}").replace("type: language_model", "dropout: 0.1", 1)
    check_refused("4: data.train.0.text", text.replace(", dropout: 0.0}", "}"))


def test_expected_scores_of_a_language_model_are_perplexities():
    assert parse_recipe(f"{RECIPE}expected: {{same: {{word_perplexity: [1, 2]}}}}", "recipe.yaml").expected
    check_refused("19: expected.same.bleu", f"{RECIPE}expected: {{same: {{bleu: [1, 2]}}}}")


def test_paths_of_text_and_tokenizer_are_resolved_and_checked(folder):
    recipe = load_recipe("recipe.yaml", ["data.train.0.text=train.en"])
    assert recipe.data.train[0].text == str(folder / "train.en")
    with pytest.raises(RecipeError, match=r"data\.valid\.text=valid\.e: "):
        load_recipe("recipe.yaml", ["data.valid.text=valid.e"])
    with pytest.raises(RecipeError, match="tokenizer.taken_from=other: "):
        load_recipe("recipe.yaml", ["tokenizer.taken_from=other"])
    (folder / "other").mkdir()
    taking = load_recipe("recipe.yaml", ["tokenizer.taken_from=other"])
    assert taking.tokenizer_model == folder / "other"


# Corpora


@pytest.mark.parametrize("spec", [
    {"text": "a.en"}, {"text": "a.en.gz"}, {"file": "a.tsv", "text": 2},
    {"file": "h.tsv", "header": True, "text": "english"}, {"file": "a.jsonl", "text": "en"},
], ids=str)
def test_monolingual_text_can_be_read_from_every_corpus_format(tmp_path, spec):
    lines = ["One.", "Two\u2028and a half.", "Three."]
    (tmp_path / "a.en").write_text("\ufeff" + "\r\n".join(lines) + "\n", encoding="utf-8", newline="")
    (tmp_path / "a.en.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    (tmp_path / "a.tsv").write_text("".join(f"x\t{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "h.tsv").write_text("german\tenglish\n" + "".join(f"x\t{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"en": line}) + "\n" for line in lines))
    first = 2 if "header" in spec else 1
    pairs = as_lines(read_corpus(Corpus(**spec), tmp_path))
    assert list(pairs) == [(n, "", line) for n, line in enumerate(lines, first)]


def test_a_missing_column_of_text_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"de": "Eins."}\n')
    with pytest.raises(CorpusError, match="a.jsonl:1: "):
        list(read_corpus(Corpus(file="a.jsonl", text="en"), tmp_path))
    (tmp_path / "a.jsonl").write_text("[1]\n")
    with pytest.raises(CorpusError, match="a.jsonl:1: "):
        list(read_corpus(Corpus(file="a.jsonl", text="en"), tmp_path))


def test_cleaning_of_monolingual_text_checks_only_the_text():
    counts = Counts()
    texts = enumerate(["A dog.", "  ", "x" * 12, "A dog.", "A cat."], 1)
    pairs = [(number, Source(""), text) for number, text in texts]
    cleaning = Cleaning(max_characters=11, max_length_ratio=1.1, remove_identical=True, remove_duplicates=True)
    assert [number for number, _, _ in clean(pairs, cleaning, counts, sides=1)] == [1, 5]
    assert counts.dropped == {"empty": 1, "too_long": 1, "duplicate": 1}


# Training


@pytest.mark.slow
def test_a_language_model_memorises_twenty_sentences_and_generates_them(tmp_path):
    run = finished_run(tmp_path)
    bundle, translator = load_bundle(best_bundle(run)), Translator.load(run, device="cpu", precision="fp32")
    scores = bundle.metadata["test"]["same"]
    # One of twenty sentences costs log 20 = 3.0 nats, its beginning decides the rest; a mean of 13 pieces or so.
    assert scores["perplexity"]["value"] < 1.5
    assert bundle.metadata["validation"] == {"loss": pytest.approx(math.log(scores["perplexity"]["value"]), abs=1e-4)}
    found = pair_scores(translator, [("", line) for line in SENTENCES])
    assert max(-score.log_probability for score in found) < math.log(20) + 2
    # As probable as all of them together are: 20 sentences of which the model gives nothing away.
    assert sum(math.exp(score.log_probability) for score in found) > 0.8
    beginnings = [line.rpartition(" ")[0] for line in SENTENCES]
    generated = [text for text, in generate(translator, beginnings, beam_size=1)]
    assert [text.text for text in generated] == SENTENCES
    assert [text.log_probability for text in generated] == pytest.approx(
        [score.log_probability for score in found], abs=1e-3)
    drawn, = generate(translator, [""], samples=50, sampling=True, seed=5, temperature=0.8, top_k=50)
    said = {text.text: text.log_probability for text in drawn if text.text in SENTENCES}
    assert len(said) > 10, "most of the twenty, each about as often"
    # Whatever was drawn from, the log-probability is the model's.
    assert said == pytest.approx({text: found[SENTENCES.index(text)].log_probability for text in said}, abs=1e-3)


def test_perplexity_equals_a_direct_computation(translator):
    lines = ["The dog sleeps.", "", "Nobody knows  me."]
    model, tokenizer = translator.model, translator.tokenizers.target
    total = 0.0
    pieces = 0
    for line in filter(None, lines):                                            # a blank line is no text
        ids = [1, *tokenizer.encode([line])[0], 2]                              # <s>, pieces, </s>
        hidden = torch.tensor(ids[:-1])
        state = model.start(torch.tensor([2]), torch.tensor([0, 1], dtype=torch.int32), 1)
        for now, following in zip(ids, ids[1:], strict=False):
            logits, state = model.step(torch.tensor([now]), state)
            total -= logits.double().log_softmax(1)[0, following].item()
        pieces += len(hidden)
    scores = perplexities(translator, [("", line) for line in lines])
    # 3 + 3 words and 15 + 16 characters (two spaces are one for the model), and an end for each line.
    assert scores["perplexity"].value == pytest.approx(math.exp(total / pieces), rel=1e-5)
    assert scores["word_perplexity"].value == pytest.approx(math.exp(total / 8), rel=1e-5)
    assert scores["character_perplexity"].value == pytest.approx(math.exp(total / 33), rel=1e-5)
    assert scores["word_perplexity"].signature == "unit:word|end:yes"
    assert scores["perplexity"].signature == f"unit:piece|end:yes|vocabulary:330|tokenizer:{tokenizer.fingerprint[:8]}"
    assert scores["perplexity"].details["units"] == pieces
    assert format_scores(scores).splitlines()[0].startswith("perplexity per piece      ")


def test_the_words_of_a_language_without_spaces_are_characters_and_the_signature_says_so(translator):
    thai = translator.towards(Languages(target="th"))
    found = perplexities(thai, [("", "The dog sleeps.")], ["word_perplexity"])["word_perplexity"]
    assert found.details["units"] == len("Thedogsleeps.") + 1 and found.signature == "unit:character|spaces:no|end:yes"


def test_lines_that_are_too_long_are_excluded_with_a_warning(translator, capsys, monkeypatch):
    monkeypatch.setattr(translator.engine, "max_positions", 23)
    lines = [("", "The dog sleeps."), ("", "a" * 23)]
    assert perplexities(translator, lines)["perplexity"].details["lines"] == 1
    assert "1 of 2 lines have more than 22 pieces" in capsys.readouterr().err
    with pytest.raises(CorpusError):
        perplexities(translator, lines[1:])


@pytest.mark.parametrize("sampling", [0.2, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_training_that_was_killed_goes_on_to_the_same_weights(folder, monkeypatch, sampling):
    settings = [f"tokenizer.subword_sampling={sampling}", "training.max_steps=5", "training.validate_every=2",
                "training.batch_tokens=90", "model.dropout=0.1"]
    recipe = load_recipe("recipe.yaml", settings)
    train(recipe, folder / "whole")
    interrupting(monkeypatch, 3, die)
    with pytest.raises(MemoryError):
        train(recipe, folder / "parted")
    train(recipe, folder / "parted")
    assert [newest_checkpoint(folder / name).step for name in ("whole", "parted")] == [5, 5]
    assert same(final_weights(folder / "parted"), final_weights(folder / "whole"))
    assert logged(folder / "parted") == logged(folder / "whole")
    assert set(logged(folder / "whole")[-1]) == {"kind", "step", "loss", "perplexity"}


def test_the_tokenizer_of_another_model_can_be_reused(folder, trained):
    start_training(load_recipe("recipe.yaml", [f"tokenizer.taken_from={trained}"]), folder / "run")
    theirs = Tokenizers.load(trained / "tokenizer").target
    assert Tokenizers.load(folder / "run" / "tokenizer").target.fingerprint == theirs.fingerprint
    of_bundle = load_recipe("recipe.yaml", [f"tokenizer.taken_from={best_bundle(trained)}"])
    assert reuse_tokenizers(of_bundle).target.fingerprint == theirs.fingerprint


def test_taken_from_must_name_a_tokenizer_of_the_same_type(folder, trained):
    (folder / "empty").mkdir()
    with pytest.raises(UserError):
        reuse_tokenizers(load_recipe("recipe.yaml", ["tokenizer.taken_from=empty"]))
    both = "languages={source: de, target: en}", "data={train: [{source: train.en, target: train.en}], " \
        "valid: {source: train.en, target: train.en}}", "model.type=transformer", "model.tied_embeddings=none"
    with pytest.raises(TokenizerError):
        reuse_tokenizers(load_recipe("recipe.yaml", [*both, "tokenizer.joint=false",
                                                     f"tokenizer.taken_from={trained}"]))


# check


def test_check_reports_one_side(folder, capsys):
    (folder / "train.en").write_text("The dog sleeps.\n\nA cat.\n")
    report = check_recipe(load_recipe("recipe.yaml", ["tokenizer.vocab_size=auto"]), folder / "run")
    training, valid, test = report.corpora
    assert (training.pairs, training.counts.dropped, list(training.sides)) == (2, {"empty": 1}, ["text"])
    assert valid.in_train["text"].lines == [1]
    in_valid, in_train, *_ = report.warnings
    assert in_valid.startswith("test.same: 20 of 20 lines are also in valid")
    assert in_train.startswith("valid: 1 of 20 texts (1 exactly; such as line 1 at train.en:1) also occur in")
    assert report.vocabulary["characters"] == {"text": len(set("The dog sleeps.A cat."))}
    assert "source_tokens" not in report.training and report.training["text_tokens"] > 2
    assert main(["check", "recipe.yaml", "--set", "tokenizer.vocab_size=auto"]) == 0
    shown = capsys.readouterr().out
    assert "Held-out text that also occurs in train" in shown and "text tokens per epoch" in shown
    assert "(language_model)" in shown and "source" not in shown


def test_check_counts_with_the_reused_tokenizer(folder, trained):
    recipe = load_recipe("recipe.yaml", [f"tokenizer.taken_from={trained}", "tokenizer.vocab_size=9000"])
    report = check_recipe(recipe, folder / "run")
    assert report.tokens_are_exact
    assert (report.vocabulary["vocab_size"], report.vocabulary["type"]) == (330, f"taken from {trained}")


# The command line


@pytest.fixture
def run(folder, monkeypatch, capsysbinary):
    """Function that runs a command in this process and returns exit code, standard output and standard error."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        capsysbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_evaluate_gives_perplexities_of_the_test_sets_and_of_any_text(run, trained, translator):
    code, out, _ = run("evaluate", trained)
    assert code == 0 and out.startswith("same\nperplexity per piece")
    code, out, _ = run("evaluate", trained, "--reference", "valid.en", "--format", "json", "--precision", "fp32")
    expected = perplexities(translator, [("", line) for line in SENTENCES])
    assert json.loads(out)["word_perplexity"]["value"] == pytest.approx(expected["word_perplexity"].value, rel=1e-6)


def test_without_test_sets_evaluate_requires_text(run, trained, tmp_path):
    copy = tmp_path / "moved"
    shutil.copytree(trained, copy)
    recipe = copy / "recipe.yaml"
    recipe.write_text(re.sub(r"(?m)^  test:.*\n(    .*\n)*", "", recipe.read_text()))
    assert run("evaluate", copy)[0] == 2


def test_score_gives_a_number_for_each_line_of_text(run, trained, translator):
    expected = [score.log_probability for score in pair_scores(translator, [("", line) for line in SENTENCES])]
    code, out, _ = run("score", trained, "valid.en")
    assert [float(line) for line in out.splitlines()] == pytest.approx(expected, abs=1e-3)
    _, out, _ = run("score", trained, "valid.en", "--format", "jsonl")
    assert json.loads(out.splitlines()[2]).keys() == {"line", "text", "log_probability", "tokens"}


@pytest.mark.parametrize("arguments", [
    ("translate", "MODEL", "valid.en"), ("score", "MODEL", "valid.en", "train.en"),
    ("evaluate", "MODEL", "--source", "valid.en", "--reference", "train.en"),
    ("compare", "MODEL", "MODEL", "--source", "valid.en", "--reference", "train.en"),
    ("tune", "MODEL", "beam_size=1"), ("evaluate", "MODEL", "--reference", "train.en", "--metric", "bleu"),
    ("evaluate", "MODEL", "--reference", "nowhere.en")])
def test_commands_that_need_a_source_refuse_a_language_model(run, trained, arguments):
    assert run(*(trained if argument == "MODEL" else argument for argument in arguments))[:2] == (2, "")


def test_a_line_too_long_to_be_scored_is_named(run, folder, trained):
    (folder / "long.en").write_text("short\n" + "x" * 1024 + "\n")
    code, _, err = run("score", trained, "long.en")
    assert code == 2 and "long.en:2: " in err
