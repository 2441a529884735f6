"""Sentences of validation and test sets are found in the training text, whichever side and form they have there."""

import pytest
from toy import train_toy, write_corpus

from seq2seq.data import kept_pairs, leakage
from seq2seq.data.corpus import read_pairs
from seq2seq.data.leakage import HeldOutText, comparable, overlap_warning, warn_about_overlap
from seq2seq.recipe import load_recipe

CAPTION = ("Ein Hund läuft.", "A dog runs.")


def recipe_of(folder, train, valid, more=""):
    """Return a recipe whose training and validation text are these pairs. more: further corpora."""
    for name, pairs in (("train", train), ("valid", valid)):
        for side, language in enumerate(("de", "en")):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (folder / "recipe.yaml").write_text(f"""
name: a
languages: {{source: de, target: en}}
data:
  train: [{{source: train.de, target: train.en}}{more}]
  valid: {{source: valid.de, target: valid.en}}
""")
    return load_recipe(folder / "recipe.yaml")


def shared(recipe):
    text = HeldOutText(recipe)
    for key, spec in recipe.data.held_out().items():
        assert list(text.add(key, spec, read_pairs(recipe, spec))) == list(read_pairs(recipe, spec))
    for spec in recipe.data.train:
        assert list(text.watch(spec, read_pairs(recipe, spec))) == list(read_pairs(recipe, spec))
    return {kind: (found.lines, found.exact) for kind, found in text.shared("valid").items()}


@pytest.mark.parametrize("train, source, target, pair", [
    ([CAPTION], 1, 1, 1),
    ([(CAPTION[0], "Something else.")], 1, 0, 0),
    ([("Etwas anderes.", CAPTION[1])], 0, 1, 0),
    ([(CAPTION[0], "Something else."), ("Etwas anderes.", CAPTION[1])], 1, 1, 0),
    ([(CAPTION[1], CAPTION[0])], 0, 0, 0),                                       # text in the wrong language
    ([(CAPTION[0], "")], 1, 0, 0),
])
def test_sources_targets_and_pairs_are_counted_apart(tmp_path, train, source, target, pair):
    found = shared(recipe_of(tmp_path, train, [("Zwei Katzen.", "Two cats."), CAPTION, ("", "")]))
    lines = {kind: found[kind][0] for kind in found}
    assert lines == {"source": [2] * source, "target": [2] * target, "pair": [2] * pair}


@pytest.mark.parametrize("source", ["ein  Hund läuft", "EIN HUND LÄUFT!", "Ein Hund la\u0308uft.",
                                    "\u00adEin Hund\u00a0läuft ."])
def test_a_sentence_is_found_without_regard_to_case_white_space_punctuation_and_unicode_form(tmp_path, source):
    assert shared(recipe_of(tmp_path, [(source, "x")], [CAPTION]))["source"] == ([1], 0)
    assert shared(recipe_of(tmp_path, [CAPTION], [CAPTION]))["source"] == ([1], 1)


@pytest.mark.parametrize("other", ["don’t say »well–known« words … please", "don`t say “well-known” words;please",
                                   "Don ' t say \"well - known\" words, please!"])
def test_a_sentence_is_found_though_its_inner_punctuation_is_another_or_apart(other):
    assert comparable(other) == comparable('Don\'t say "well-known" words... please.')
    assert comparable("1.5") != comparable("15") and comparable("कि") != comparable("की") and comparable("a+b") != "a b"


def test_text_of_punctuation_alone_and_words_with_inner_signs_stay_different():
    assert comparable("...") == "..." != comparable("!") and comparable("C++ is") != comparable("C is")
    assert comparable("«Ja.»") == comparable("ja") and comparable("नमस्ते।") == comparable("नमस्ते")


@pytest.mark.slow
def test_processes_find_the_same_sentences_as_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept_pairs, "BLOCK_LINES", 7)
    sentences = [(f"Satz {number % 60}", f"sentence {number}") for number in range(101)]
    recipe, told = recipe_of(tmp_path, sentences[13:31], sentences), []
    for processes in (1, 2):
        with_processes = recipe.model_copy(update={"training": recipe.training.model_copy(
            update={"threads": processes})})
        warn_about_overlap(with_processes, recipe.data.train, tmp_path / f"prepared-{processes}")
        told.append(capsys.readouterr().err)
    assert told[0] == told[1] != ""


def test_a_pair_of_the_reverse_direction_is_the_same_pair(tmp_path):
    (tmp_path / "back.tsv").write_text(f"{CAPTION[1]}\t{CAPTION[0]}\n")
    back = ", {file: back.tsv, languages: {source: en, target: de}}"
    found = shared(recipe_of(tmp_path, [("Etwas anderes.", "Something else.")], [CAPTION], back))
    assert found == {"source": ([1], 1), "target": ([1], 1), "pair": ([1], 1)}


def test_a_few_sentences_that_every_corpus_has_are_counted_without_a_warning(tmp_path, capsys, monkeypatch):
    sentences = [(f"Satz {number}", f"sentence {number}") for number in range(200)]
    recipe = recipe_of(tmp_path, [("Ja.", "Yes."), ("Nein.", "No."), ("So.", "So.")], [*sentences, ("Ja.", "Yes.")])
    warn_about_overlap(recipe, recipe.data.train, tmp_path / "prepared")
    told = capsys.readouterr().err
    assert told.startswith("valid: 1 of 201 sources") and "warning" not in told
    recipe = recipe_of(tmp_path, sentences[:3], sentences)
    warn_about_overlap(recipe, recipe.data.train, tmp_path / "prepared")
    told = capsys.readouterr().err
    assert "warning" in told and "train.de:1, line 2 at train.de:2" in told
    with monkeypatch.context() as patch:                                        # the text is not read again
        patch.setattr(leakage, "read_pairs", None)
        warn_about_overlap(recipe, recipe.data.train, tmp_path / "prepared")
    assert capsys.readouterr().err == told
    assert overlap_warning("valid", {}) == ""


def test_a_test_set_with_sentences_of_the_validation_set_is_warned_of(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)                                                 # the paths of --set
    sentences = [(f"Satz {number}", f"sentence {number}") for number in range(200)]
    recipe_of(tmp_path, sentences, [("Ja.", "Yes.")])
    for name, first in (("same", 150), ("other", 199)):
        pairs = [(f"{source.upper()}!", target) for source, target in [*sentences[first:], *[("Ja", "Yes")] * 50]]
        for side, code in enumerate(("de", "en")):
            (tmp_path / f"{name}.{code}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    recipe = load_recipe(tmp_path / "recipe.yaml", ["data.test={same: {source: same.de, target: same.en}, "
                                                    "other: {source: train.de, target: train.en}}"])
    warn_about_overlap(recipe, [], tmp_path / "prepared")
    told = capsys.readouterr().err
    assert "test.same: 50 of 100 lines are also in valid, by which" in told and "test.other" not in told


def test_a_training_warns_at_its_start_and_not_when_it_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)                                                 # the paths of --set
    write_corpus(tmp_path)
    valid = "data.valid={source: train.en, target: train.de}"
    train_toy(tmp_path, [valid, "training.max_steps=1"])
    assert "also occur in train" in capsys.readouterr().err
    train_toy(tmp_path, [valid, "training.max_steps=2"])
    assert "also occur in train" not in capsys.readouterr().err
