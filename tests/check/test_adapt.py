"""An adapted model translates its domain better, and other text as well as before."""

import os
import shlex
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import RECIPE, WORDS, copy_finished_run, write_corpus

from seq2seq.check.adapt import (
    TEXT,
    TRAINING,
    TradeOff,
    _command,
    _direction,
    _print_sizes,
    _require_languages,
    _split,
    _text_of_model,
    _without_common_sentences,
    adapt,
    choose,
    interpolated,
)
from seq2seq.check.given_text import GivenText, corpora_of
from seq2seq.devices import cpu_flags
from seq2seq.errors import CorpusError, OptionError, RecipeError, UserError
from seq2seq.inference.kernel_library import usable_libraries
from seq2seq.inference.load_model import as_tensors
from seq2seq.interop.huggingface_import import import_model
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import best_bundle, load_bundle
from seq2seq.storage.run_directory import check_recipe_of_run
from seq2seq.training.run import train
from seq2seq.translation.translator import Translator
from tests.fairseq_models import make

DOMAIN = [("moon", "Mond"), ("sun", "Sonne"), ("star", "Stern"), *WORDS[:3], ("sees", "sieht")]


def write_pairs(folder, name, words, count, seed):
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        chosen = [words[index] for index in torch.randint(len(words), (5,), generator=generator)]
        pairs.append([" ".join(word[side] for word in chosen) for side in (0, 1)])
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of the toy language, which does not know some words of its domain."""
    folder = tmp_path_factory.mktemp("adapt")
    write_corpus(folder)
    write_pairs(folder, "train", WORDS, 300, 1)
    write_pairs(folder, "valid", WORDS, 40, 2)
    write_pairs(folder, "memory", DOMAIN, 300, 3)
    text = RECIPE.replace("max_steps: 11", "max_steps: 400").replace("validate_every: 5", "validate_every: 200")
    text = text.replace("d_model: 16", "d_model: 32").replace("dropout: 0.1", "dropout: 0")
    (folder / "recipe.yaml").write_text(text.replace("log_every: 2", "log_every: 200"))
    train(load_recipe(folder / "recipe.yaml", ["training.batch_tokens=256"]), folder / "run")
    return folder


@pytest.fixture(scope="module")
def adapted(folder):
    output = folder / "adapted"
    return output, adapt(folder / "run", memory(folder), output, allow_loss=2.0,
                         settings=["training.max_steps=600", "training.learning_rate=0.005", "training.threads=1"])


def memory(folder):
    return [folder / "memory.en", folder / "memory.de"]


@pytest.mark.slow
def test_the_domain_gains_and_general_text_loses_no_more_than_allowed(adapted):
    _, found = adapted
    before, chosen = found.table[0], found.chosen
    assert [row.share for row in found.table] == pytest.approx([share / 10 for share in range(11)])
    assert chosen.domain > before.domain + 20 and chosen.general >= before.general - 2
    assert chosen.domain == max(row.domain for row in found.table if row.general >= before.general - 2)
    assert found.tests["domain"].difference > 20 and found.tests["domain"].p_value < 0.05
    assert found.tests["general"].baseline.value > 20                           # the model's own test set


@pytest.mark.slow
def test_the_adapted_model_is_the_average_of_the_old_and_the_trained_weights(folder, adapted):
    output, found = adapted
    chosen = load_bundle(best_bundle(output))
    if usable_libraries(cpu_flags()):
        of_training, of_average = (load_bundle(best_bundle(path)).metadata["int8"]
                                   for path in (output / TRAINING, output))
        assert of_average["reference_bleu"] == pytest.approx((found.chosen.domain + found.chosen.general) / 2)
        assert of_average["sentences"] == of_training["sentences"] and of_average != of_training
    old, new, mean = (as_tensors(load_bundle(best_bundle(path)).weights)
                      for path in (folder / "run", output / TRAINING, output))
    for name, weight in mean.items():
        torch.testing.assert_close(weight, old[name].lerp(new[name], found.chosen.share))
    assert chosen.metadata["adaptation"]["chosen"]["share"] == found.chosen.share
    assert {name: scores["bleu"]["value"] for name, scores in chosen.metadata["test"].items()} == {
        name: test.system.value for name, test in found.tests.items()}
    translator = Translator.load(output, precision="fp32")
    assert translator.decoding == Translator.load(folder / "run", precision="fp32").decoding
    [[best]] = translator.translate(["one moon sees two sun"])
    assert "Mond" in best.text and "Sonne" in best.text


@pytest.mark.slow
def test_training_validation_and_test_text_have_no_sentence_in_common(adapted):
    output, _ = adapted
    sets = {name: set((output / TEXT / f"domain.{name}.source").read_text().splitlines())
            for name in ("train", "valid", "test")}
    assert all(sets.values()) and not sets["train"] & sets["valid"] and not sets["train"] & sets["test"]
    assert not sets["valid"] & sets["test"]
    general = (output / TEXT / "general.train.source").read_text().splitlines()
    assert general and not any("moon" in line for line in general)


@pytest.mark.slow
def test_the_same_call_again_gives_the_same_and_trains_no_more(folder, adapted, capsys):
    output, found = adapted
    (folder / "memory.en").touch()                                              # the contents count, not the time
    assert adapt(folder / "run", memory(folder), output, allow_loss=2.0,
                 settings=["training.max_steps=600", "training.learning_rate=0.005", "training.threads=1"]) == found
    messages = capsys.readouterr().err
    assert f"{output / TRAINING} has finished" in messages
    pairs = [len((output / TEXT / f"{kind}.valid.source").read_text().splitlines()) for kind in ("domain", "general")]
    assert found.validated == tuple(pairs)
    assert f"scoring 11 averages of the old and the new weights on {pairs[0]} + {pairs[1]} pairs" in messages
    assert "the adapted model: BLEU" in messages or not usable_libraries(cpu_flags())
    assert "--restart" not in messages and "raise" not in messages                 # `adapt` has no such option


@pytest.mark.slow
def test_ctrl_c_while_the_averages_are_scored_keeps_the_training_and_says_so(folder, adapted, monkeypatch):
    output, _ = adapted
    before = (output / TRAINING / "metrics.jsonl").read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("seq2seq.check.adapt.score_pairs", interrupted)
    with pytest.raises(Stopped) as stopped:
        adapt(folder / "run", memory(folder), output, allow_loss=2.0,
              settings=["training.max_steps=600", "training.learning_rate=0.005", "training.threads=1"])
    assert stopped.value.exit_code == 130
    assert (output / TRAINING / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_without_a_gain_that_is_allowed_no_model_is_written(folder, tmp_path):
    output = tmp_path / "refused"
    with pytest.raises(UserError):
        adapt(folder / "run", memory(folder), output,
              settings=["training.max_steps=1", "training.learning_rate=1e-9", "training.threads=1"])
    assert not best_bundle(output) and (output / TRAINING).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [40, 200, 2000])
def test_general_text_of_ones_own_is_divided_too_and_each_epoch_has_as_much_of_it(folder, tmp_path, pairs):
    write_pairs(tmp_path, "general", WORDS, pairs, 9)
    general = [tmp_path / "general.en", tmp_path / "general.de"]
    with pytest.raises(UserError, match="no average"):
        adapt(folder / "run", memory(folder), tmp_path / "output", general=general,
              settings=["training.max_steps=1", "training.learning_rate=1e-9", "training.threads=1"])
    lines = [(tmp_path / "output" / TEXT / f"general.{name}.source").read_text().splitlines()
             for name in ("train", "valid", "test")]
    assert sum(map(len, lines)) <= pairs and all(lines)
    domain, replayed = load_recipe(tmp_path / "output" / "recipe.yaml").data.train
    ratio = len((tmp_path / "output" / TEXT / "domain.train.source").read_text().splitlines()) / len(lines[0])
    assert domain.weight == 1 and replayed.weight == pytest.approx(min(5, ratio), abs=1e-4)
    assert (ratio > 5, ratio < 1) == (pairs == 40, pairs == 2000)


@pytest.mark.slow
def test_bad_input_is_refused_and_nothing_is_written(folder, tmp_path, monkeypatch):
    (tmp_path / "few.tsv").write_text("one\teins\ntwo\tzwei\n")
    with pytest.raises(CorpusError):
        adapt(folder / "run", [tmp_path / "few.tsv"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    monkeypatch.chdir(folder)
    with pytest.raises(CorpusError):                                            # relative to the working directory
        adapt(Path("run"), [Path(os.path.relpath(tmp_path / "few.tsv"))], tmp_path / "new")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(OptionError):
        adapt(folder / "run", memory(folder), tmp_path / "other")


@pytest.mark.parametrize("line", ["7\tone\teins", "en\tzh"])
def test_a_table_that_may_be_misread_is_refused(tmp_path, line):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes/phrasebook/en_zh.yaml", check_files=False)
    (tmp_path / "memory.tsv").write_text(f"{line}\n")
    with pytest.raises(CorpusError):
        GivenText(corpora_of([tmp_path / "memory.tsv"]), recipe)


def test_units_of_a_translation_memory_that_lack_a_language_are_counted(tmp_path, capsys):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes/phrasebook/en_zh.yaml", check_files=False)
    units = [f'<tuv xml:lang="en"><seg>{number} a</seg></tuv>' + (
        "" if number % 7 == 3 else f'<tuv xml:lang="zh"><seg>{number} b</seg></tuv>') for number in range(77)]
    (tmp_path / "memory.tmx").write_text(f"<tmx><body>{''.join(f'<tu>{unit}</tu>' for unit in units)}</body></tmx>")
    sets = _split(GivenText(corpora_of([tmp_path / "memory.tmx"]), recipe), seed=1, per_held_out=10)
    assert sorted(pair for pairs in sets for pair in pairs) == sorted(
        (f"{number} a", f"{number} b") for number in range(77) if number % 7 != 3)
    assert "11 of 77 pairs are left out" in capsys.readouterr().err


def test_text_of_a_domain_may_be_in_several_files_of_several_formats(tmp_path, capsys):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes/phrasebook/en_zh.yaml", check_files=False)
    (tmp_path / "a.po").write_text('msgid ""\nmsgstr "Language: zh_CN\\n"\n\n' + "\n".join(
        f'{"#, fuzzy" if number % 11 == 5 else "#"}\nmsgid "{number} a"\nmsgstr "{number} b"\n'
        for number in range(44)))
    (tmp_path / "b.tsv").write_text("".join(f"{number} c\t{number} d\n" for number in range(33)) + "e\t\n")
    sets = _split(GivenText(corpora_of([tmp_path / "a.po", tmp_path / "b.tsv"]), recipe), seed=1, per_held_out=10)
    assert sorted(pair for pairs in sets for pair in pairs) == sorted(
        [(f"{number} a", f"{number} b") for number in range(44) if number % 11 != 5]
        + [(f"{number} c", f"{number} d") for number in range(33)])
    messages = capsys.readouterr().err
    assert "4 messages without a finished translation" in messages and "b.tsv:34)" in messages


@pytest.mark.parametrize("pairs, per_held_out, expected", [
    (1014, 4, 253), (4000, 4, 500), (1000, 10, 100), (20, 10, 2), (9000, 10, 500)])
def test_text_that_suffices_gives_500_pairs_each_for_validation_and_test(tmp_path, pairs, per_held_out, expected):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes/phrasebook/en_zh.yaml", check_files=False)
    (tmp_path / "a.tsv").write_text("".join(f"{number} c\t{number} d\n" for number in range(pairs)))
    sets = _split(GivenText(corpora_of([tmp_path / "a.tsv"]), recipe), seed=1, per_held_out=per_held_out)
    assert list(map(len, sets)) == [pairs - 2 * expected, expected, expected]


@pytest.mark.parametrize("pairs, language, warned", [(50, "de", True), (500, "de", False), (50, None, False)])
def test_the_sizes_of_all_sets_are_printed_and_too_little_general_text_is_warned_of(
        tmp_path, capsys, pairs, language, warned):
    for kind, numbers in (("domain", (80, 10, 0)), ("general", (900, pairs, 50))):
        for name, number in zip(("train", "valid", "test"), numbers, strict=True):
            for side in ("source", "target"):
                (tmp_path / f"{kind}.{name}.{side}").write_text(("ten words " * 5 + "\n") * number)
    _print_sizes(tmp_path, language, 0.5)
    messages = capsys.readouterr().err
    assert ("warning" in messages) == warned == ("2,000 general pairs" in messages)
    assert ("50 for tests (± 7.4 BLEU)" in messages) == (language is not None) and "80 pairs for training" in messages


def test_no_training_pair_has_a_sentence_of_a_validation_or_test_set():
    texts = {"domain.train": [("a", "A"), ("g", "G")], "domain.valid": [("b", "B")], "domain.test": [("c", "C")],
             "general.train": [("x", "X"), ("B.", "Y"), ("y", "C"), ("z", "H")],
             "general.valid": [("g", "Z"), ("b", "V")], "general.test": [("h", "H"), ("c", "C")]}
    assert _without_common_sentences(texts) == {
        "domain.train": [("a", "A")], "domain.valid": [("b", "B")], "domain.test": [("c", "C")],
        "general.train": [("x", "X")], "general.valid": [("g", "Z")], "general.test": [("h", "H")]}


@pytest.mark.parametrize("scored, expected", [
    (100, [number for number in range(700) if number % 7]), (201, range(700)), (None, range(700))])
def test_validation_pairs_that_chose_the_old_checkpoint_are_left_out_if_others_suffice(tmp_path, scored, expected):
    write_corpus(tmp_path)
    for language in ("en", "de"):
        (tmp_path / f"valid.{language}").write_text("".join(f"{number} {language}\n" for number in range(700)))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    settings = [f"training.valid_sentences={scored}"] if scored else []
    recipe = load_recipe(tmp_path / "recipe.yaml", settings)
    _, valid, _ = _text_of_model(recipe, recipe.languages, limit=10, seed=1)
    assert valid == [(f"{number} en", f"{number} de") for number in expected]


def test_of_a_model_of_several_directions_one_is_adapted_with_general_text_of_this_direction(tmp_path, capsys):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("target: train.de}]", "target: train.de}, {source: train.de, "
        "target: train.en, languages: {source: de, target: en}}, {source: valid.de, target: valid.en, languages: "
        "{source: de, target: ell_Grek}}]").replace("valid: {source: valid.en, target: valid.de}", "valid: [{source: "
        "valid.en, target: valid.de}, {source: valid.de, target: valid.en, languages: {source: de, target: en}}]", 1))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    chosen = [_direction(recipe, "runs/model", *codes).pair for codes in
              ((None, None), ("deu", "en"), (None, "en"), ("de", "el"), (None, "el"))]
    assert chosen == [("en", "de"), ("de", "en"), ("de", "en"), ("de", "ell_Grek"), ("de", "ell_Grek")]
    assert "from de to ell_Grek, the only one" in capsys.readouterr().err
    for codes in (("fr", None), (None, "fr"), ("en", "en")):
        with pytest.raises(OptionError):
            _direction(recipe, "runs/model", *codes)
    train, valid, test = _text_of_model(recipe, _direction(recipe, "runs/model", "de", "en"), limit=100, seed=1)
    assert {(target, source) for source, target in train} <= set(zip(*(
        (tmp_path / f"train.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    assert len(valid) == 7 and not test


@pytest.mark.slow
def test_an_imported_multilingual_model_is_adapted_in_one_direction(folder, tmp_path):
    pytest.importorskip("transformers")
    make(tmp_path / "theirs", d_model=12, heads=2, layers=(1, 1))
    import_model(str(tmp_path / "theirs"), tmp_path / "imported", "eng_Latn", "rus_Cyrl")
    arguments = {"general": memory(folder), "target_language": "de", "allow_loss": 100, "settings": [
        "training.max_steps=1", "training.learning_rate=1e-9", "training.threads=1", "training.precision=fp32"]}
    with pytest.raises(UserError, match="no average"):
        adapt(tmp_path / "imported", [folder / "train.en", folder / "train.de"], tmp_path / "new", **arguments)
    trained = Translator.load(tmp_path / "new" / TRAINING, "cpu", "fp32")
    assert [each.pair for each in trained.directions.all] == [("eng_Latn", "deu_Latn")]
    assert trained.directions.codes == ("deu_Latn",)
    with pytest.raises(OptionError, match="adaptation of another model"):
        adapt(tmp_path / "imported", [folder / "train.en", folder / "train.de"], tmp_path / "new",
              **arguments | {"target_language": "ru"})


@pytest.mark.slow
def test_odd_names_and_carriage_returns_are_no_obstacle(folder, tmp_path):
    lines = [f"{source}\r{source}\t{target}\n" for source, target in zip(
        *((folder / f"memory.{side}").read_text().splitlines() for side in ("en", "de")), strict=True)]
    (tmp_path / "memory.tsv").write_text("".join(lines), newline="")
    with pytest.raises(UserError, match=r"training\.max_steps"):
        adapt(folder / "run", [tmp_path / "memory.tsv"], tmp_path / "2024",
              settings=["training.max_steps=x"])
    assert not (tmp_path / "2024").exists()
    (tmp_path / "memory.jsonl").write_text("{}\n")
    with pytest.raises(OptionError):
        adapt(folder / "run", [tmp_path / "memory.jsonl"], tmp_path / "2024")
    adapt(folder / "run", [tmp_path / "memory.tsv"], tmp_path / "2024", allow_loss=100, settings=[
        "training.max_steps=200", "training.learning_rate=0.005", "training.threads=1"])
    recipe = load_recipe(tmp_path / "2024" / "recipe.yaml")
    assert recipe.name == "2024" and recipe.training.learning_rate == 0.01 / 4


@pytest.mark.slow
def test_a_second_adaptation_keeps_the_learning_rate_of_the_first(folder, adapted, tmp_path):
    output, _ = adapted
    with pytest.raises(UserError, match="no average"):
        adapt(output, memory(folder), tmp_path / "again", allow_loss=0,
              settings=["training.max_steps=1", "training.learning_rate=1e-9", "training.threads=1"])
    assert load_recipe(tmp_path / "again" / "recipe.yaml").training.learning_rate == 0.005


@pytest.mark.slow
def test_decoding_options_of_the_call_hold_for_all_translations(folder, tmp_path, monkeypatch):
    used, made = [], Translator.of_model
    monkeypatch.setattr(Translator, "of_model", lambda stored, *rest: (
        used.append(stored.recipe.decoding.beam_size), made(stored, *rest))[1])
    adapt(folder / "run", memory(folder), tmp_path / "greedy", allow_loss=100, settings=[
        "training.max_steps=200", "training.learning_rate=0.005", "training.threads=1", "decoding.beam_size=1"])
    assert len(used) > 11 and set(used) == {1}                                  # shares of weights and validations


@pytest.mark.slow
def test_an_adaptation_of_other_text_is_not_resumed(folder, adapted, tmp_path):
    output, _ = adapted
    with pytest.raises(RecipeError, match="learning_rate"):
        adapt(folder / "run", memory(folder), output, settings=["training.learning_rate=0.1"])
    for changed in ({"seed": 2}, {"general": memory(folder)}):
        with pytest.raises(OptionError):
            adapt(folder / "run", memory(folder), output, **changed)


class Interrupted(Exception):
    """Ends an adaptation where its training begins."""


def test_the_text_gets_the_warnings_of_check_before_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("seq2seq.check.adapt.train", Mock(side_effect=Interrupted))
    copy_finished_run(tmp_path)
    write_pairs(tmp_path, "memory", DOMAIN, 60, 3)
    write_pairs(tmp_path, "other", WORDS, 60, 4)
    lines = {side: (tmp_path / f"memory.{side}").read_text().splitlines() for side in ("en", "de")}
    lines["en"][:20] = lines["de"][:20]
    lines["de"][30:] = [line.replace("n", "@@ n") for line in lines["de"][30:]]
    for side in lines:
        (tmp_path / f"memory.{side}").write_text("\n".join(lines[side]) + "\n")
    for name, settings, warned in (("a", [], True), ("b", ["data.cleaning.remove_identical=true"], False)):
        with pytest.raises(Interrupted):
            adapt(tmp_path / "run", memory(tmp_path), tmp_path / name, settings=settings,
                  general=[tmp_path / "other.en", tmp_path / "other.de"])
        messages = capsys.readouterr().err
        assert ("same text on both sides" in messages) is warned and "marks of subwords" in messages
        assert "memory.en" in messages and "other.en" not in messages


def test_an_interrupted_adaptation_is_resumed_after_model_text_and_output_have_moved(tmp_path, monkeypatch):
    def interrupted(recipe, run, **_):
        check_recipe_of_run(recipe, run)
        started.append(recipe.tokenizer_model)
        raise Interrupted

    started = []
    monkeypatch.setattr("seq2seq.check.adapt.train", interrupted)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    copy_finished_run(old)
    write_pairs(old, "memory", DOMAIN, 60, 3)
    write_pairs(old, "other", WORDS, 60, 4)
    for place, name in ((old, "adapted"), (new, "renamed")):
        general = [place / "other.en", place / "other.de"]
        with pytest.raises(Interrupted):
            adapt(place / "run", memory(place), place / name, general=general)
        if place == old:
            shutil.copytree(old, new)
            (new / "adapted").rename(new / "renamed")
            old.rename(tmp_path / "gone")
    name = best_bundle(new / "run").name
    assert started == [place / "run" / "bundles" / name for place in (old, new)]
    (new / "memory.en").write_text((new / "memory.en").read_text().replace("moon", "sun"))
    with pytest.raises(OptionError, match="other text"):
        adapt(new / "run", memory(new), new / "renamed", general=general)


@pytest.mark.slow
def test_a_model_whose_text_is_elsewhere_needs_other_general_text(folder, tmp_path):
    text = (folder / "train.en").read_text()
    (folder / "train.en").unlink()
    try:
        with pytest.raises(CorpusError, match="^the model's own training .* Give general text with --general"):
            adapt(folder / "run", memory(folder), tmp_path / "new")
    finally:
        (folder / "train.en").write_text(text)


def required(folder, *domain, general=(), detector=None, own=None):
    """Check the languages of files whose general pairs are `own` pairs of the model, or those of `general`."""
    (folder / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(folder / "recipe.yaml", check_files=False)
    files = {"text": domain, "general": general} if general else {"text": domain}
    given = {name: GivenText(corpora_of([folder / file for file in names]), recipe) for name, names in files.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seq2seq.check.pair_checks.is_installed", lambda: detector is not None)
        patch.setattr("seq2seq.check.pair_checks.LanguageDetector", lambda languages: detector)
        pairs = [pair[1:] for pair in given["general"].pairs()] if general else own or toy_pairs(folder)
        _require_languages(given, pairs, recipe, partial(_command, "run", given, ["--output", "new"]))


def toy_pairs(folder):
    write_pairs(folder, "own", WORDS, 300, 1)
    return list(zip(*((folder / f"own.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))


class Lingua:
    """Language identification that finds these languages in all texts."""

    fault = None

    def __init__(self, **found):
        self.found = found

    def wrong(self, source, target):
        return self.found


def test_text_in_the_languages_of_the_model_is_accepted_also_if_it_is_short_or_like_the_models_own(tmp_path):
    write_pairs(tmp_path, "memory", DOMAIN, 60, 3)
    required(tmp_path, "memory.en", "memory.de", detector=Lingua())
    (tmp_path / "buttons.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in WORDS * 9))
    required(tmp_path, "buttons.tsv")
    required(tmp_path, "memory.en", "memory.de", detector=Lingua(source="hr"))      # in the model's own text, too


def test_exchanged_sides_are_refused_with_the_command_that_exchanges_them(tmp_path):
    write_pairs(tmp_path, "memory", DOMAIN, 60, 3)
    write_pairs(tmp_path, "more", WORDS, 60, 4)
    with pytest.raises(CorpusError) as error:
        required(tmp_path, "more.en", "more.de", "memory.de", "memory.en")
    right = [str(tmp_path / name) for name in ("more.en", "more.de", "memory.en", "memory.de")]
    assert str(error.value).splitlines()[-1] == shlex.join(["seq2seq", "adapt", "run", *right, "--output", "new"])
    assert "more.de" not in str(error.value).splitlines()[0]
    (tmp_path / "memory.tsv").write_text("".join(f"{target}\t{source}\n" for source, target in WORDS * 9))
    with pytest.raises(CorpusError, match="columns of .*memory.tsv"):
        required(tmp_path, "memory.tsv")


def test_the_same_language_on_both_sides_is_refused(tmp_path):
    (tmp_path / "memory.tsv").write_text("".join(f"{target}\t{target}\n" for _, target in WORDS * 9))
    with pytest.raises(CorpusError, match="of the source look like German"):
        required(tmp_path, "memory.tsv")


def test_a_third_language_is_refused_in_the_domain_and_in_general_text(tmp_path):
    write_pairs(tmp_path, "memory", DOMAIN, 60, 3)
    write_pairs(tmp_path, "general", WORDS, 300, 1)
    general = ("general.en", "general.de")
    with pytest.raises(CorpusError, match="general.en: most lines of the target look like French"):
        required(tmp_path, "memory.en", "memory.de", general=general, detector=Lingua(target="fr"))
    with pytest.raises(CorpusError) as error:
        required(tmp_path, "memory.de", "memory.en", general=general[::-1], detector=Lingua(source="de", target="en"))
    assert all(f"{name}.de" in str(error.value).splitlines()[-1] for name in ("memory", "general"))


def test_text_that_is_too_little_to_judge_is_said_and_not_refused(tmp_path, capsys):
    write_pairs(tmp_path, "memory", DOMAIN, 3, 3)
    required(tmp_path, "memory.de", "memory.en")
    assert "memory.de: too little text" in capsys.readouterr().err
    required(tmp_path, "memory.de", "memory.en", own=[("one", "eins")] * 99)
    assert "too few to learn them" in capsys.readouterr().err


def test_a_gain_on_the_domain_counts_if_it_is_significant():
    domains = {0: 20.0, 0.3: 24.0, 0.6: 25.0, 1: 26.0}
    table = [TradeOff(share, domain, 30.0 - share) for share, domain in domains.items()]
    assert choose(table, 0.7, lambda row: row.share == 0.3).share == 0.3
    assert choose(table, 0.7, lambda row: True).share == 0.6                     # 1.0 loses too much
    assert choose(table, 0.7, lambda row: row.share in (0, 1)) is table[0]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=11), st.floats(0, 5))
def test_the_choice_never_loses_more_than_allowed_nor_less_on_the_domain(scores, allow_loss):
    table = [TradeOff(number / 10, *pair) for number, pair in enumerate(scores)]
    chosen = choose(table, allow_loss)
    assert chosen.general >= table[0].general - allow_loss and chosen.domain >= table[0].domain
    assert chosen is table[0] or chosen.domain > table[0].domain


def test_shares_of_weights_are_linear_and_whole_numbers_stay():
    old, new = {"a": torch.tensor([0.0, 2.0]), "n": torch.tensor([3])}, {"a": torch.tensor([1.0, 4.0]),
                                                                       "n": torch.tensor([3])}
    assert interpolated(old, new, 0.25)["a"].tolist() == [0.25, 2.5] and interpolated(old, new, 0.25)["n"].item() == 3
