"""Vocabularies of imported models are trimmed to a text, and get new languages."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.inference.load_model import build, read_stored_model
from seq2seq.interop.huggingface_export import export_model
from seq2seq.interop.huggingface_import import import_model
from seq2seq.interop.vocabulary_changes import VocabularyChanges
from seq2seq.storage.checkpoints import licence_of
from seq2seq.tokenizers.marian_vocabulary import UNUSED
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import UNKNOWN_ID
from seq2seq.translation.translator import Translator
from tests import fairseq_models, marian_models, t5_models

pytest.importorskip("transformers")

KINDS = {
    "NLLB": (fairseq_models.make, {"end": 0.75}, "de,en"),
    "M2M-100, nothing tied": (fairseq_models.make, {"kind": "m2m100", "tied": False, "end": 1.8, "seed": 2}, "de,en"),
    "mBART-50": (fairseq_models.make, {"kind": "mbart50", "unused": -1, "activation": "gelu"}, "de,en"),
    "MADLAD-400": (t5_models.make, {"kind": "madlad", "languages": True, "own_output": True}, "de,en"),
    "Marian, several languages": (marian_models.make, {"languages": (">>eng<<", ">>fra<<")}, "de,eng"),
    "Marian, separate vocabularies": (marian_models.make, {"separate": True}, "de,en"),
}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "_"))
def models(request, tmp_path_factory):
    """Lines of text, and the directories of a model with all its pieces and of one with those of the lines."""
    directory = tmp_path_factory.mktemp("models")
    make, settings, languages = KINDS[request.param]
    make(directory / "theirs", **settings)
    lines = ([*marian_models.GERMAN[:3], *marian_models.ENGLISH[:3]] if make is marian_models.make else
             fairseq_models.LINES[:5])
    (directory / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    codes = languages.split(",")
    import_model(str(directory / "theirs"), directory / "all", *codes)
    import_model(str(directory / "theirs"), directory / "trimmed", *codes,
                 VocabularyChanges(codes, text=[directory / "text"]))
    return lines, directory / "all", directory / "trimmed"


def loaded(models):
    return [Translator.load(path, "cpu", "fp32") for path in models[1:]]


def old_ids(whole, trimmed):
    """Return the old id of each id of a vocabulary."""
    number = {name: index for index, name in enumerate(whole.pieces(range(whole.vocab_size)))}
    return [number[name] for name in trimmed.pieces(range(trimmed.vocab_size))]


def test_the_text_keeps_its_pieces_and_others_are_gone(models):
    whole, trimmed = (each.tokenizers for each in loaded(models))
    for old, new in ((whole.source, trimmed.source), (whole.target, trimmed.target)):
        assert new.vocab_size < old.vocab_size
        for lines in (models[0], [Source(line, language=code, source_language=code) for line in models[0]
                                  for code in new.languages]):
            assert list(map(new.pieces, new.encode(lines))) == list(map(old.pieces, old.encode(lines)))
    assert len(trimmed.source.languages) <= 2


def test_other_text_is_segmented_into_smaller_pieces(models):
    whole, trimmed = (each.tokenizers for each in loaded(models))
    words = ["Hundekatze", "laughing children sleep in houses", "den Garten im Haus"]
    assert trimmed.source.decode(trimmed.source.encode(words)) == whole.source.decode(whole.source.encode(words))


def logits_of(path, translator, lines):
    sources = list(map(translator.source, lines))
    sides = [EncodedSide.from_lists(side) for side in (
        translator.encode(sources), translator.tokenizers.target.encode(
            translator.tokenizers.target.target_lines(lines[::-1], sources)))]
    return build(read_stored_model(path)).eval()(gather(EncodedCorpus(*sides), np.arange(len(lines)))).dense()


def test_logits_of_kept_pieces_are_equal(models):
    whole, trimmed = loaded(models)
    kept = old_ids(whole.tokenizers.target, trimmed.tokenizers.target)
    with torch.no_grad():
        expected, found = (logits_of(path, each, models[0]) for path, each in zip(models[1:], (whole, trimmed),
                                                                                  strict=True))
    torch.testing.assert_close(found, expected[:, kept], rtol=0, atol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_translations_are_those_of_a_model_that_cannot_generate_the_other_pieces(models, beam_size):
    lines, path, _ = models
    whole, trimmed = loaded(models)
    stored = read_stored_model(path)
    bias = np.full(whole.tokenizers.target.vocab_size, -1e4, np.float32)
    kept = old_ids(whole.tokenizers.target, trimmed.tokenizers.target)
    bias[kept] = stored.weights.get("output_bias", np.zeros_like(bias))[kept]
    section = stored.recipe.model.model_copy(update={"output_bias": True})
    restricted = Translator.of_model(replace(
        stored, weights={**stored.weights, "output_bias": bias}, recipe=stored.recipe.model_copy(
            update={"model": section})), "cpu", "fp32")
    found, expected = ([best for best, *_ in each.translate(
        lines, beam_size=beam_size, min_length=5, max_length=13, safety_net=False)] for each in (trimmed, restricted))
    assert [each.text for each in found] == [each.text for each in expected]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-4)
    assert len({each.score for each in found}) == len(lines)


# New languages

GEORGIAN = ["ძაღლი გარბის", "კატა სახლში გარბის", "ძაღლი სახლში", "კატა და ძაღლი, 2 კატა", "ჩემი სახლი"]
EXTENDED = {
    "NLLB": (fairseq_models.make, {}, "ka", "ru"),
    "M2M-100, nothing tied": (fairseq_models.make, {"kind": "m2m100", "tied": False}, "abk", "ru"),
    "mBART-50": (fairseq_models.make, {"kind": "mbart50", "unused": -1}, "abk", "ru"),
    "MADLAD-400": (t5_models.make, {"kind": "madlad", "languages": True, "own_output": True}, "ka", "en"),
    "Marian": (marian_models.make, {"languages": (">>eng<<", ">>fra<<")}, "kat", "fra"),
}


@pytest.fixture(scope="module", params=EXTENDED, ids=lambda kind: kind.replace(" ", "_"))
def extended(request, tmp_path_factory):
    """Code of a new language, the code that its token starts from, the model, and the model with the language."""
    directory = tmp_path_factory.mktemp("extended")
    make, settings, new, like = EXTENDED[request.param]
    make(directory / "theirs", **settings)
    (directory / "text").write_text("".join(f"{line}\n" for line in GEORGIAN), encoding="utf-8")
    import_model(str(directory / "theirs"), directory / "old", "de", like)
    import_model(str(directory / "theirs"), directory / "new", "de", like,
                 VocabularyChanges(new_languages={new: like}, text=[directory / "text"]))
    return new, like, *(read_stored_model(directory / name) for name in ("old", "new"))


def test_text_of_a_new_script_has_pieces_of_its_own_and_other_text_the_same_ids(extended):
    new, _, before, after = extended
    lines = [*fairseq_models.LINES[:8], *marian_models.LINES]
    for old, now in ((before.tokenizers.source, after.tokenizers.source),
                     (before.tokenizers.target, after.tokenizers.target)):
        assert now.encode(lines) == old.encode(lines)
        assert UNKNOWN_ID in old.encode(GEORGIAN)[0]
        encoded = now.encode(GEORGIAN[:3])
        assert UNKNOWN_ID not in sum(encoded, []) and now.decode(encoded) == GEORGIAN[:3]
        assert max(len(piece) for line in now.encode(GEORGIAN) for piece in now.pieces(line)) > 2
        assert UNKNOWN_ID in now.encode(["ჩ"])[0]                               # it occurs once


def test_new_rows_start_from_those_that_spelled_the_piece(extended):
    new, like, before, after = extended
    vocabulary = after.tokenizers.target
    ids = {name: index for index, name in enumerate(vocabulary.pieces(range(vocabulary.vocab_size)))}
    for name in {"source_embedding", "target_embedding", "output_weight"} & after.weights.keys():
        rows, size = after.weights[name], len(before.weights[name])
        assert np.array_equal(rows[:size], before.weights[name])
        source = after.tokenizers.source
        assert np.array_equal(rows[source.language_id(new)], rows[source.language_id(like)])
        piece = max((piece for piece in ids if "ღ" in piece), key=len)
        np.testing.assert_allclose(rows[ids[piece]], np.mean([rows[ids[part]] for part in piece], 0), atol=1e-6)
        assert len(np.unique(rows[size:], axis=0)) > 10


def test_the_model_translates_into_the_new_language(extended):
    new, _, _, after = extended
    translator = Translator.of_model(after, "cpu", "fp32").into(new)
    assert translator.languages.target == new
    assert len(translator.translate(["ein Hund"], beam_size=1, safety_net=False)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nllb", "m2m100"])
def test_a_changed_model_is_exported_and_imported_again_with_its_languages(kind, tmp_path):
    fairseq_models.make(tmp_path / "theirs", kind=kind, end=0)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in [*fairseq_models.LINES[:5], *GEORGIAN]),
                                   encoding="utf-8")
    new = "ka" if kind == "nllb" else "kbd"                                     # M2M-100 has Georgian
    import_model(str(tmp_path / "theirs"), tmp_path / "ours", "de", new,
                 VocabularyChanges(["de", "en"], {new: "de"}, [tmp_path / "text"]))
    parity = export_model(tmp_path / "ours", tmp_path / "exported", tmp_path / "text")
    assert parity.same == parity.lines and parity.worst_score < 1e-3
    import_model(str(tmp_path / "exported"), tmp_path / "again")
    first, second = (read_stored_model(tmp_path / name) for name in ("ours", "again"))
    ids, again = ({name: index for name, index in stored.tokenizers.source.ids.items() if not name.startswith(UNUSED)}
                  for stored in (first, second))
    again.pop("<mask>", None)                                                   # which an export gives an unused id
    ids.pop("<mask>", None)
    assert sorted(ids, key=ids.__getitem__) == sorted(again, key=again.__getitem__)     # an export closes gaps
    assert first.recipe.languages == second.recipe.languages
    assert all(np.array_equal(first.weights["target_embedding"][ids[name]],
                              second.weights["target_embedding"][again[name]]) for name in ids)
    lines = [Source(line) for line in GEORGIAN + fairseq_models.LINES[:5]]
    found = [Translator.of_model(stored, "cpu", "fp32").translate(lines, beam_size=2) for stored in (first, second)]
    assert [best.text for best, *_ in found[0]] == [best.text for best, *_ in found[1]]


# The command


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nllb")
    fairseq_models.make(folder / "theirs")
    (folder / "text").write_text("".join(f"{line}\n" for line in fairseq_models.LINES[:5]), encoding="utf-8")
    return folder


def run(folder, *options):
    return main(["import", str(folder / "theirs"), "--output", str(folder / "ours"), *options])


def test_the_sizes_before_and_after_are_told(nllb, capsys):
    assert run(nllb, "--keep-languages", "de,en", "--vocabulary-from", str(nllb / "text")) == 0
    told = capsys.readouterr().err
    assert "before: 274 pieces" in told and "now: " in told


@pytest.mark.parametrize("options", [
    ["--keep-languages", "de,en"], ["--vocabulary-from", "text"],
    ["--vocabulary-from", "text", "--keep-languages", "de,fr"],
    ["--vocabulary-from", "empty", "--keep-languages", "de,en"], ["--add-language", "de"], ["--add-language", "x"],
    ["--add-language", "ka=like:fr"]])
def test_what_cannot_be_changed_is_refused(nllb, options, monkeypatch, capsys):
    monkeypatch.chdir(nllb)
    (nllb / "empty").write_text("\n")
    assert main(["import", "theirs", "--output", "refused", *options]) == 2
    assert not (nllb / "refused").exists()


@pytest.mark.parametrize(("header", "licence"), [
    ("---\nlanguage: [en]\nlicense: cc-by-nc-4.0\n---\n# NLLB\nlicense: mit\n", "cc-by-nc-4.0"),
    ("---\r\nlicense: 'other'\r\nlicense_name: Ours 1.0\r\n---\r\n", "Ours 1.0"), ("license: mit\n", None),
    ("---\nlicense: other\n---\n", "other")])
def test_the_licence_of_the_origin_is_told_and_carried_into_the_card(nllb, tmp_path, capsys, header, licence):
    (nllb / "theirs" / "README.md").write_bytes(header.encode())
    assert main(["import", str(nllb / "theirs"), "--output", str(tmp_path / "ours")]) == 0
    told, card = capsys.readouterr().err, (tmp_path / "ours" / "README.md").read_text()
    assert f"licence of the model: {licence or 'not stated'}" in told
    assert f"- licence: {licence or 'not stated'}\n" in card
    assert licence_of(tmp_path / "ours") == licence
