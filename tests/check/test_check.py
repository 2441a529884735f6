"""Tests of `check`: what it reports about a recipe, its data and the cost, without training."""

import importlib
import io
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import torch

from seq2seq.check import Report, check_recipe, percentiles, show_report
from seq2seq.check.cost import estimate_gpus
from seq2seq.check.results import Finding
from seq2seq.check.warnings import add_epoch_warnings
from seq2seq.cli import main
from seq2seq.data.corpus import read_lines
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.data.preparation import TrainingText, prepare, train_or_load_tokenizers
from seq2seq.errors import RecipeError
from seq2seq.model import build_model
from seq2seq.recipe import load_recipe
from seq2seq.storage.locks import lock_run
from seq2seq.storage.run_directory import check_recipe_of_run
from seq2seq.storage.tokenizer_files import save_tokenizers
from seq2seq.tokenizers.tokenizer import train_tokenizers
from seq2seq.training.step import TrainingStep

RECIPE = """\
name: tiny
languages: {source: de, target: en}
data:
  train: [{source: train.de, target: train.en}, {source: more.de, target: more.en, weight: 3}]
  valid: {source: valid.de, target: valid.en}
  test: {first: {source: test.de, target: test.en}}
  cleaning: {max_characters: 50}
tokenizer: {vocab_size: 283}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7}
training: {batch_tokens: 11, warmup_steps: 7, max_steps: 130, precision: fp32}
"""
TEXTS = {
    "train": ["ein Hund|a dog", "|a cat", "eine Katze|a cat", "x" * 51 + "|y", "der Hund läuft|the dog runs", "a|"],
    "more": ["zwei Katzen|two cats"],
    "valid": ["drei Hunde|three dogs", "eine Katze|one cat"],
    "test": ["vier Hunde|four dogs", "ein Hund|one dog", "fünf Hunde|five dogs", "der Hund läuft|the dog is running"],
}


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """The working directory, with a recipe and its data."""
    for name, pairs in TEXTS.items():
        write(tmp_path, name, pairs)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(directory: Path, name: str, pairs: list[str]) -> None:
    for side, language in enumerate(("de", "en")):
        (directory / f"{name}.{language}").write_text("".join(pair.split("|")[side] + "\n" for pair in pairs))


def checked(*overrides: str) -> Report:
    return check_recipe(load_recipe("recipe.yaml", overrides), Path("run"))


def test_a_test_sentence_is_found_in_train_whatever_its_case_white_space_and_normalisation(directory):
    write(directory, "train", ["ein  Hund läuft|a dog", "eine Katze|a cat", "ein Vogel|a bird", "zwei Vögel|two birds"])
    for sentence in ("ein Hund läuft ", "Ein Hund LÄUFT", unicodedata.normalize("NFD", "ein Hund läuft")):
        write(directory, "test", ["vier Hunde|four dogs", f"{sentence}|a dog runs"])
        corpus, = (corpus for corpus in checked().corpora if corpus.role == "test.first")
        assert corpus.in_train["source"].lines == [2], sentence


def test_lines_of_a_table_with_a_header_are_numbered_as_in_the_file(directory):
    (directory / "table.tsv").write_text("de\ten\nvier Hunde\tfour dogs\neine Katze\ta cat\n\tnothing\n")
    report = checked("data.test.first={file: table.tsv, header: true, source: de, target: en}")
    assert next(corpus.in_train["source"].lines for corpus in report.corpora if corpus.role == "test.first") == [3]
    assert any("(line 4)" in warning for warning in report.warnings)


def test_too_little_text_to_judge_its_pairs_is_read_twice_for_the_tokenizer_and_once_more(directory, monkeypatch):
    opened, read = Counter(), read_lines

    def counted(path, *arguments):
        opened[path.name] += 1
        return read(path, *arguments)

    monkeypatch.setattr("seq2seq.data.corpus.read_lines", counted)
    checked()
    assert opened["train.de"] == 3
    assert opened["test.de"] == 2, "the second time by the function that a training calls"


def test_line_numbers_in_lists_have_no_thousands_separator():
    assert str(Finding(7, [823, 1126, 11383])) == "7 (lines 823, 1126, 11383, …)"


def test_cleaning_is_counted_by_reason_with_an_example(directory):
    train, more = (corpus for corpus in checked().corpora if corpus.role == "train")
    assert (train.label, train.pairs, more.pairs) == ("train.de", 3, 1)
    assert train.counts.dropped == {"empty": 2, "too_long": 1}
    assert train.counts.examples == {"empty": 2, "too_long": 4}


def test_lengths_are_those_of_the_text(directory):
    corpora = {corpus.role: corpus for corpus in checked().corpora}
    source, target = corpora["test.first"].sides["source"], corpora["test.first"].sides["target"]
    assert source.characters == {50: 10, 95: 14, 99: 14, 100: 14}
    assert target.words == {50: 2, 95: 4, 99: 4, 100: 4}


def test_percentiles_equal_those_computed_by_hand():
    assert percentiles(Counter(range(1, 101))) == {50: 50, 95: 95, 99: 99, 100: 100}
    assert percentiles(Counter({7: 98, 11: 1, 13: 1})) == {50: 7, 95: 7, 99: 11, 100: 13}
    assert percentiles(Counter()) == {}


@pytest.mark.parametrize("overrides", [(), ("data.train.0.tag=<BT>", "data.test.first.tag=<X>")])
def test_sentences_of_valid_and_test_that_occur_in_train_are_counted_without_tags(directory, overrides):
    report = checked(*overrides)
    found = {corpus.role: {kind: shared.lines for kind, shared in corpus.in_train.items()} for corpus in report.corpora}
    assert found == {"train": {}, "valid": {"source": [2], "target": [], "pair": []},
                     "test.first": {"source": [2, 4], "target": [], "pair": []}}


def test_a_test_sentence_in_the_training_text_of_the_reverse_direction_is_found(directory):
    recipe = RECIPE.replace("{source: more.de, target: more.en, weight: 3}",
                            "{source: more.en, target: more.de, languages: {source: en, target: de}}").replace(
        "test: {first: {source: test.de, target: test.en}}",
        "test: {first: {source: test.en, target: test.de, languages: {source: en-GB, target: de}}}")
    (directory / "recipe.yaml").write_text(recipe)
    write(directory, "test", ["vier Hunde|four dogs", "eine Katze|A cat", "sechs Hunde|ein Hund"])
    report = checked()
    assert next(corpus.in_train["source"].lines for corpus in report.corpora if corpus.role == "test.first") == [2]


def test_a_few_common_sentences_are_no_warning(directory):
    write(directory, "test", [f"Satz {number}|sentence {number}" for number in range(199)] + ["ein Hund|a dog"])
    report = checked()
    assert len(next(corpus.in_train["source"].lines for corpus in report.corpora if corpus.role == "test.first")) == 1
    assert not any("test.first" in line and "also occur in train" in line for line in report.warnings)


def test_the_size_is_that_of_the_model(directory):
    recipe = load_recipe("recipe.yaml")
    built = sum(weight.numel() for weight in build_model(recipe.model, 283, 283).parameters())
    report = checked()
    assert report.model["parameters"] == built
    assert report.model["of_embeddings"] == 283 * 12
    assert [report.memory[part] for part in ("weights", "gradients", "optimizer")] == [4 * built, 4 * built, 8 * built]
    assert report.memory["total"] == (sum(report.memory.values()) - report.memory["checkpoint"]) / 2
    assert report.memory["checkpoint"] == 12 * built
    assert checked("training.ema_decay=0.9").memory["weights"] == 8 * built
    apart = checked("model.tied_embeddings=none", "tokenizer.joint=false")
    assert apart.model["of_embeddings"] == 3 * 283 * 12


@pytest.mark.parametrize("settings", [
    ("data.train.1.weight=2.5", "training.accumulation=2"), ("data.train.1.tag=<2>", "data.cleaning.max_pieces=9"),
    *(pytest.param(settings, marks=pytest.mark.slow)
      for settings in ((), ("data.temperature=2",), ("training.batch_tokens=29",)))])
def test_tokens_and_steps_are_those_of_the_training(directory, settings):
    report = checked(*settings)
    recipe = load_recipe("recipe.yaml", settings)
    text = TrainingText.of(recipe)
    prepared = prepare(text, train_or_load_tokenizers(text, Path("other/tokenizer")), Path("other"), 1)
    corpus, section = prepared.corpus, recipe.training
    assert [read.counts.to_dict() for read in report.corpora if read.role == "train"] == list(prepared.counts.values())
    assert report.vocabulary["characters"] == {"both languages": len(set().union(*prepared.characters.values()))}
    assert report.tokens_are_exact
    assert report.training["steps_per_epoch"] == len(
        plan_epoch(corpus, section.batch_tokens, section.accumulation, recipe.seed, epoch=0))
    assert report.training["source_tokens"] == round(float(corpus.source.lengths @ corpus.weights))
    assert report.training["target_tokens"] == round(float(corpus.target.lengths @ corpus.weights))


@pytest.mark.slow
def test_subword_sampling_makes_more_tokens_which_differ_from_epoch_to_epoch(directory):
    sampled = checked("tokenizer.subword_sampling=0.9", "tokenizer.type=bpe")
    assert not sampled.tokens_are_exact
    assert sampled.training["target_tokens"] > checked("tokenizer.type=bpe").training["target_tokens"]


def test_tokens_are_exact_once_there_is_a_tokenizer(directory):
    pairs = [tuple(pair.split("|")) for pair in TEXTS["train"] + TEXTS["more"]]
    kept = [pair for pair in pairs if all(pair) and len(pair[0]) <= 50]
    tokenizers = train_tokenizers(kept, load_recipe("recipe.yaml").tokenizer, seed=1)
    save_tokenizers(tokenizers.files(), Path("run/tokenizer"))
    lengths = [[len(ids) for ids in tokenizer.encode([pair[side] for pair in kept])]
               for side, tokenizer in enumerate((tokenizers.source, tokenizers.target))]
    longest = [max(both) for both in zip(*lengths, strict=True)]
    limit = max(longest) - 1
    short = [place for place in range(4) if longest[place] <= limit]
    report = checked(f"data.cleaning.max_pieces={limit}")
    assert report.tokens_are_exact
    assert report.training["target_tokens"] == sum((lengths[1][place] + 1) * (3 if place == 3 else 1)
                                                   for place in short)
    dropped = sum(corpus.counts.dropped.get("too_many_pieces", 0) for corpus in report.corpora)
    assert dropped == 4 - len(short)
    check_recipe_of_run(load_recipe("recipe.yaml"), Path("run"))
    for size in (283, 287):                                                     # of the run; of another recipe
        assert checked(f"tokenizer.vocab_size={size}").vocabulary["vocab_size"] == size


def test_a_vocabulary_that_the_text_does_not_allow_is_the_error_of_train(directory, capsys):
    assert main(["check", "recipe.yaml", "--set", "tokenizer.vocab_size=999"]) == 2
    of_check = capsys.readouterr().err.splitlines()[-1]
    assert main(["train", "recipe.yaml", "--set", "tokenizer.vocab_size=999"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == of_check


def test_the_automatic_vocabulary_size_is_reported(directory, capsys):
    assert main(["check", "recipe.yaml", "--set", "tokenizer.vocab_size=auto", "--no-measure"]) == 0
    told = capsys.readouterr()
    size = re.search(r"vocab_size: auto chose (\d+) pieces", told.err)[1]
    assert f"{size} pieces, joint, size derived from the text (subwords, unigram)" in told.out
    assert main(["check", "recipe.yaml", "--set", "tokenizer.vocab_size=auto", "--set", "tokenizer.joint=false",
                 "--set", "model.tied_embeddings=decoder", "--no-measure"]) == 0
    assert re.search(r"(\d+) source and (\d+) target pieces, one vocabulary for each language", capsys.readouterr().out)


# Problems that would stop a training in its first minutes


def errors(*overrides: str) -> str:
    return "\n".join(checked(*overrides).errors)


def test_a_run_directory_that_cannot_be_used_is_an_error(directory, monkeypatch):
    Path("run").mkdir()
    with lock_run(Path("run")):
        assert errors()
    assert not errors()
    Path("other/.lock").mkdir(parents=True)                                     # cannot be opened for writing
    assert check_recipe(load_recipe("recipe.yaml"), Path("other")).errors
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != directory)
    assert check_recipe(load_recipe("recipe.yaml"), Path("new")).errors


def test_a_run_of_another_recipe_is_an_error_once_it_has_learnt_something(directory, quick_tensorboard, capsys):
    check_recipe_of_run(load_recipe("recipe.yaml"), Path("run"))
    assert not errors("model.dropout=0.3")
    assert main(["train", "recipe.yaml", "--run-dir", "run", "--set", "training.max_steps=2"]) == 0
    assert not errors("training.max_steps=3")
    assert "model.dropout: 0.1 -> 0.3" in errors("model.dropout=0.3")
    other = check_recipe(load_recipe("recipe.yaml", ["model.dropout=0.3"]), Path("run"), measured=True)
    assert other.errors and other.measured["seconds_a_step"] > 0, "in another run directory, it can be trained"


def test_a_tokenizer_that_is_to_be_taken_over_and_is_not_there_is_an_error(directory):
    Path("empty").mkdir()
    assert "empty has no tokenizer" in errors("tokenizer.taken_from=empty")


def test_a_damaged_tokenizer_of_a_run_is_the_error_of_train(directory, quick_tensorboard, capsys):
    assert main(["train", "recipe.yaml", "--run-dir", "run", "--set", "training.max_steps=2"]) == 0
    next(Path("run/tokenizer").glob("*.model")).write_bytes(b"x")
    assert main(["check", "recipe.yaml", "--run-dir", "run"]) == 2
    of_check = capsys.readouterr().err.splitlines()[-1]
    assert main(["train", "recipe.yaml", "--run-dir", "run"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == of_check


def test_a_model_to_start_from_of_another_shape_is_an_error(directory, quick_tensorboard, capsys):
    assert main(["train", "recipe.yaml", "--run-dir", "first", "--set", "training.max_steps=2"]) == 0
    assert not errors("training.start_from=first")
    few = "data.train=[{source: more.de, target: more.en}]"
    unseen = [[line for line in checked(*settings).warnings if "U+0048" in line]                       # H
              for settings in ([few], [few, "training.start_from=first"])]
    assert unseen[0] and not unseen[1], "the characters of the first training are known"
    assert "training.start_from: " in errors("training.start_from=first", "model.feed_forward=11")


def test_steps_are_tried_unless_that_is_declined_or_memory_is_too_small(directory, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module("seq2seq.check.measure"), "SECONDS", 300)    # busy machines, too
    assert main(["check", "recipe.yaml"]) == 0
    assert re.search(r"minutes without validation: .* s per step \(median of 10\)", capsys.readouterr().out)
    assert main(["check", "recipe.yaml", "--no-measure"]) == 0
    assert re.search("time +not measured", capsys.readouterr().out)
    monkeypatch.setattr("seq2seq.check.cost.free_memory", lambda device: 7)
    assert main(["check", "recipe.yaml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no step was run" in printed and "the steps of this training need about" in printed


@pytest.mark.slow
def test_the_memory_is_that_of_the_device_that_trains(directory, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("seq2seq.check.cost.free_memory", asked.append)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert main(["check", "recipe.yaml", "--device", "cpu"]) == 0
    assert asked == ["cpu"]


def test_every_corpus_that_cannot_be_read_is_an_error_and_the_others_are_reported(directory, capsys):
    (directory / "test.en").write_text("one\n")
    (directory / "train.de").write_bytes(b"ein Hund\n\xff\n")
    report = checked()
    assert [error.split(":")[0] for error in report.errors] == ["train", "test.first"]
    assert {corpus.label: corpus.error is None for corpus in report.corpora} == {
        "train.de": False, "more.de": True, "valid.de": True, "test.de": False}
    assert main(["check", "recipe.yaml"]) == 2
    out, err = capsys.readouterr()
    assert "more.de" in out and "not read: train train.de" in out
    assert "train.de:2" in err and "test.en" in err


@pytest.mark.parametrize("name", ["a[1]", pytest.param("a*", marks=pytest.mark.slow)])
def test_the_name_of_a_file_is_no_pattern_and_no_markup(directory, capsys, name):
    for stem, pairs in [("a1", TEXTS["valid"]), ("ab", TEXTS["valid"]), (name, TEXTS["test"])]:
        write(directory, stem, pairs)
    corpora = "[{source: train.de, target: train.en}, {source: more.de, target: more.en, weight: 3}]"
    (directory / "recipe.yaml").write_text(RECIPE.replace(corpora, f"[{{source: '{name}.de', target: '{name}.en'}}]"))
    assert main(["check", "recipe.yaml", "--no-measure"]) == 0
    assert re.search(rf"train {re.escape(name)}\.de +source +4 ", capsys.readouterr().out)
    (directory / f"{name}.de").write_bytes(b"x\n\xe4\n")
    assert main(["check", "recipe.yaml"]) == 2
    assert f"{name}.de:2: byte 0xe4" in capsys.readouterr().err


def test_repairs_made_while_reading_are_reported(directory, capsys):
    (directory / "more.de").write_bytes(b"\xef\xbb\xbfzwei Katzen\r\n")
    assert main(["check", "recipe.yaml", "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert "train more.de: 1 lines, 1 kept; 1 carriage returns removed; 1 byte order marks removed" in out


def test_a_precision_that_the_machine_lacks_is_an_error(directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("seq2seq.devices.cpu_flags", set)
    report = checked("training.precision=bf16")
    assert any("training.precision: precision bf16" in error for error in report.errors)
    assert checked("training.precision=auto").machine["precision"] == "fp32"


def test_a_corpus_with_swapped_sides_is_named_without_lingua(directory, monkeypatch):
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    train = [f"der Hund {number} läuft schnell nach Hause|the dog {number} runs home quickly" for number in range(499)]
    write(directory, "train", train)
    write(directory, "valid", ["|".join(reversed(pair.split("|"))) for pair in train[:11]])
    warning, = (warning for warning in checked().warnings if "are exchanged" in warning)
    assert warning.startswith("valid valid.de: most lines of the source look like English (en)")
    write(directory, "valid", ["|".join(pair.split("|")[1:] * 2) for pair in train[:11]])   # English on both sides
    warning, = (warning for warning in checked().warnings if "most lines" in warning)
    assert "target" not in warning.partition(".")[0] and "exchanged" not in warning


@pytest.mark.parametrize(("languages", "warned"), [
    ("{source: de, target: en}", False), ("{source: deu, target: en-GB}", False), ("{source: da, target: en}", True),
    ("{source: en, target: de}", True)])
def test_a_test_set_in_a_direction_without_training_pairs_is_warned_of(directory, languages, warned):
    found = [warning for warning in checked(f"data.test.first.languages={languages}").warnings
             if warning.startswith("test.first: no training corpus translates from ")]
    assert bool(found) == warned


@pytest.mark.parametrize(("settings", "epochs", "warnings"), [
    ("training.consistency=5", 19.9, 1), ("training.consistency=5", 20, 0), ("training.max_steps=7", 9, 0),
    ("training.max_steps=7", 100, 0), ("training.max_steps=7", 101, 1), ("training.early_stopping=3", 101, 0)])
def test_few_epochs_with_consistency_training_and_many_without_early_stopping_are_warned_of(directory, settings, epochs,
                                                                                           warnings):
    told: list[str] = []
    section, training = load_recipe("recipe.yaml", [settings]).training, {"epochs": epochs, "steps_per_epoch": 7}
    add_epoch_warnings(section, training, told)
    assert len(told) == warnings
    continued: list[str] = []
    add_epoch_warnings(section.model_copy(update={"start_from": "runs/first"}), training, continued)
    assert continued == [warning for warning in told if "consistency" not in warning]


def test_an_empty_line_is_not_called_a_wrong_pair_too(directory):
    write(directory, "train", [f"|{number} dogs" for number in range(7)] + ["5 Hunde|5 dogs", "3 Hunde|4 dogs"])
    train = checked().corpora[0]
    assert train.findings["empty"].count == 7
    assert train.findings["numbers_differ"].lines == [9]
    assert train.limits["min_number_agreement"]["0.7"] == 1


def test_pieces_a_word_are_given_only_where_spaces_part_words(directory, capsys):
    source, target = checked("languages.target=ja").corpora[0].sides.values()
    assert source.pieces_a_word > 1 and target.pieces_a_word is None
    characters = sum(len(english) for english in ("a dog", "a cat", "the dog runs"))
    assert target.characters_a_piece == pytest.approx(characters / (target.tokens - 3))    # without `</s>`
    show_report(checked("languages.target=ja"))
    told = re.findall(r"train train\.(?:de|en), (\w+): (.*?) characters", capsys.readouterr().out)
    assert [(side, "per word" in numbers) for side, numbers in told] == [("source", True), ("target", False)]


def test_pieces_a_word_are_those_of_the_pairs_that_training_keeps(directory):
    train_or_load_tokenizers(TrainingText.of(load_recipe("recipe.yaml")), Path("other/tokenizer"))
    recipe = load_recipe("recipe.yaml", ["data.cleaning.max_pieces=31", "tokenizer.taken_from=other"])
    short = check_recipe(recipe, Path("run")).corpora[0]
    write(directory, "train", [*TEXTS["train"], "z" * 49 + "|" + "z" * 50])
    with_long = check_recipe(recipe, Path("run")).corpora[0]
    assert with_long.counts.dropped["too_many_pieces"] == 1
    assert with_long.sides == short.sides


def test_the_report_as_json_has_all_numbers(directory, capsys):
    assert main(["check", "recipe.yaml", "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["model"]["parameters"] == checked().model["parameters"]
    assert values["corpora"][0]["sides"]["source"]["characters"]["100"] == 14
    assert values["training"]["steps_per_epoch"] == checked().training["steps_per_epoch"]
    assert values["measured"]["seconds_a_step"] > 0
    assert values["machine"]["precision"] == "fp32"


def test_the_time_of_the_base_model_on_gpus_is_estimated_from_its_weights(directory):
    base = [f"model.{key}={value}" for key, value in {
        "d_model": 512, "num_heads": 8, "feed_forward": 2048, "encoder_layers": 6, "decoder_layers": 6}.items()]
    report = checked(*base, "training.max_steps=3600", "training.batch_tokens=25")
    model = report.model
    # Vaswani et al. 2017: d_model 512, feed-forward 2,048; weights, biases, gains of 6 layers.
    assert model["weights_per_source_token"] == 6 * (4 * 512 * 513 + 512 * 2048 * 2 + 2560 + 4 * 512)
    few = report.estimated
    assert few["hours_on_eight_h100"] > few["hours_on_one_h100"] == pytest.approx(12 * 0.55e-3)     # short kernels
    steps = report.training["steps_per_epoch"]
    assert few["operations_a_step"] == pytest.approx(6 / steps * (
        model["weights_per_source_token"] * report.training["source_tokens"]
        + model["weights_per_target_token"] * report.training["target_tokens"]))
    twice = checked(*base, "training.max_steps=3600", "training.batch_tokens=25", "training.consistency=5").estimated
    assert twice["operations_a_step"] == 2 * few["operations_a_step"]
    report.training |= {"source_tokens": 25_000 * steps, "target_tokens": 25_000 * steps}
    estimate_gpus(load_recipe("recipe.yaml", [*base, "training.max_steps=3600"]), report)
    # On an H200, 27.5 ms with 60.5 million weights; here, the vocabulary is small. An H100 has 82 % of the speed.
    assert report.estimated["hours_on_one_h100"] == pytest.approx(27.5e-3 * 44.1 / 60.5 / 0.82, rel=0.1)
    assert report.estimated["hours_on_eight_h100"] == pytest.approx(12 * 0.55e-3 + 4 * 44.1e6 / 250e9, rel=0.02)


def test_a_small_model_has_no_estimate_of_its_time_on_gpus(directory):
    assert not checked().estimated


def test_the_report_for_a_person_names_what_matters(directory, capsys):
    assert main(["check", "recipe.yaml", "--set", "data.train.1.name=[more]"]) == 2, "a list is no name"
    capsys.readouterr()
    assert main(["check", "recipe.yaml", "--set", 'data.train.1.name="[red]"']) == 0
    out = capsys.readouterr().out
    for expected in (r"train train\.de +source +3 +10 +14", r"train \[red\]", r"train\.de +too_long +1 +4 ",
                     r"test\.de +sources +4 +2 +2 +line 2 at train\.de:1",
                     r"[\d,]+ parameters \(transformer\)", r"steps +\d+ per epoch",
                     r"283 pieces, joint \(subwords, unigram\)", r"warning: test\.first: 2 of 4 sources"):
        assert re.search(expected, out), expected


def test_a_valid_recipe_is_reported_without_problems(directory, monkeypatch):
    for name, pair in (("valid", "zwei Hund|two dog"), ("test", "zwei zwei|two two"), ("train", "ein Hund|a dog")):
        write(directory, name, [pair])
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    show_report(checked("tokenizer.vocab_size=auto"))
    assert "No problems found." in out.getvalue()
    assert "Cleaning drops nothing from train." in out.getvalue()


def test_checks_ignore_the_tag(directory):
    plain, tagged = (checked("data.train=[{source: train.de, target: train.en" + tag + "}]").corpora[0]
                     for tag in ("", ", tag: <2en>"))
    assert tagged.findings == plain.findings and tagged.findings["empty"].count == 2
    assert tagged.counts.dropped == plain.counts.dropped


# Advice


def about(warnings: list[str], *words: str) -> list[str]:
    return [warning for warning in warnings if all(word in warning for word in words)]


FAULTY = {"remove_duplicates=true": ("repeat an earlier pair", "ein Hund|a dog"),
          "remove_identical=true": ("the same text", "taxi|taxi"),
          "remove_damaged=true": ("are damaged", "ein H\ufffdnd|a dog"),
          "min_number_agreement=0.7": ("number in digits", "7 Hunde|11 dogs")}


@pytest.mark.parametrize("key", FAULTY)
def test_cleaning_is_recommended_only_where_it_helps(directory, key):
    name = key.partition("=")[0]
    words, pair = FAULTY[key]
    faulty = [*[pair] * 7, *TEXTS["train"]]
    write(directory, "train", faulty)
    write(directory, "test", faulty)
    train, test = about(checked().warnings, words)
    assert train.startswith("train") and f"data.cleaning.{name}" in train
    assert test.startswith("test") and "data.cleaning" not in test
    cleaned = checked(f"data.cleaning.{key}", "data.test={}").warnings          # nothing remains
    assert not about(cleaned, name) and not about(cleaned, words)


def test_what_remains_after_cleaning_is_warned_of_without_the_key_that_is_set(directory):
    write(directory, "train", ["7 8 Hunde|7 11 dogs"] * 7 + TEXTS["train"])
    warning, = about(checked("data.cleaning.min_number_agreement=0.4").warnings, "number in digits")
    assert "7 (lines 1, 2, 3, 4, 5, …)" in warning and "data.cleaning" not in warning
    report = checked("data.cleaning.remove_duplicates=true")
    assert report.corpora[0].findings["duplicate"].count == 6 and "duplicate" not in report.corpora[0].remaining
    assert not about(report.warnings, "repeat")


def test_pairs_that_cleaning_drops_are_not_called_misaligned_or_of_the_other_side(directory, monkeypatch):
    monkeypatch.setattr("seq2seq.check.pair_checks.is_installed", lambda: False)
    train = [f"der Hund {number} läuft schnell nach Hause|the dog {number} runs home quickly" for number in range(520)]
    swapped = ["|".join(reversed(pair.split("|"))) for pair in train[:30]]
    write(directory, "train", train + swapped)
    warning, = about(checked("data.cleaning.max_characters=99").warnings, "train", "other side", "source of")
    assert "data.cleaning.language: sides" in warning
    assert not about(checked("data.cleaning.max_characters=99", "data.cleaning.language=sides").warnings, "other side")


@pytest.mark.parametrize(("key", "code"), [("data.test.first.languages", "german"), ("languages", "jp")])
def test_a_name_of_a_language_and_a_country_are_refused_at_the_key_that_gives_them(directory, key, code):
    with pytest.raises(RecipeError, match=rf"{key}\.source: '{code}' is not a language code"):
        checked(f"{key}={{source: {code}, target: en}}")


@pytest.mark.parametrize(("settings", "key"), [
    (["training.warmup_steps=131"], "training.warmup_steps"), (["training.warmup_steps=130"], "training.warmup_steps"),
    (["training.validate_every=131"], "training.validate_every"),
    (["training.validate_every=65", "training.early_stopping=2"], "training.early_stopping"),
    (["training.validate_every=65", "training.average={kind: best, count: 3}"], "training.average.count"),
    (["data.train=[{source: train.de, target: train.en}]", "data.temperature=2"], "data.temperature")])
def test_a_key_that_can_have_no_effect_is_named(directory, settings, key):
    warnings = checked(*settings).warnings
    assert len(about(warnings, f"{key}: ")) == 1
    assert not about(checked("training.warmup_steps=129").warnings, "effect")
    assert len(set(warnings)) == len(warnings)


def test_filters_of_pairs_have_no_effect_on_a_language_model(directory):
    settings = ["data={train: [{text: train.en}], valid: {text: valid.en}}", "languages={target: en}",
                "model={type: language_model, d_model: 12, num_heads: 2, decoder_layers: 1}", "training.warmup_steps=3"]
    assert len(about(checked(*settings, "data.cleaning.max_length_ratio=2").warnings, "max_length_ratio")) == 1
    assert not about(checked(*settings, "data.cleaning.max_characters=20").warnings, "data.cleaning.")


def test_the_time_of_slow_steps_is_the_median_of_several_with_the_threads_of_the_training(directory, monkeypatch):
    measuring = importlib.import_module("seq2seq.check.measure")
    monkeypatch.setattr(measuring, "SECONDS", 0)
    threads, update = [], TrainingStep.update

    def counted(self, *arguments):
        threads.append(torch.get_num_threads())
        return update(self, *arguments)

    monkeypatch.setattr(TrainingStep, "update", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report = check_recipe(load_recipe("recipe.yaml", ["training.threads=2"]), Path("run"), measured=True)
    finally:
        torch.set_num_threads(before)
    assert report.measured["steps"] == measuring.MIN_REPORTED == 3
    assert threads == [2] * measuring.MIN_STEPS


def test_columns_are_as_wide_as_their_longest_word_and_share_the_rest():
    from seq2seq.check.print_report import column_widths

    columns = [["corpus", "train train.de"], ["characters\n50", "67"], ["lines", "125, 1844, 2416"]]
    assert column_widths(columns, 0) == [8, 10, 5], "no word is broken, however narrow the terminal"
    assert column_widths(columns, 27) == [8, 10, 9]
    assert column_widths(columns, 1000) == [14, 10, 15]
