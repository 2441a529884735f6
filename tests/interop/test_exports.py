"""An exported model gives the same results in the other library as the original, or the export is refused."""

import functools
import gzip
import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.errors import CheckpointError, FormatError, UserError
from seq2seq.files.yaml_document import write_yaml
from seq2seq.inference.load_model import stored_weights
from seq2seq.interop import ctranslate2, huggingface_export
from seq2seq.interop.ctranslate2 import CTranslate2Translator
from seq2seq.interop.huggingface_import import import_model
from seq2seq.interop.parity import Difference, Parity, Tolerance, compare, development_lines, require
from seq2seq.model import build_model
from seq2seq.recipe import TokenizerSection, parse_recipe
from seq2seq.storage.checkpoints import load_bundle, save_bundle
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR, in_context
from seq2seq.tokenizers.tokenizer import train_tokenizers
from seq2seq.translation.line_translator import PairScore
from seq2seq.translation.translator import Translator
from tests.marian_models import ENGLISH, GERMAN, make

for package in ("transformers", "ctranslate2"):
    pytest.importorskip(package)

BASE = {"d_model": 26, "num_heads": 13, "encoder_layers": 1, "decoder_layers": 2, "feed_forward": 37,
        "max_positions": 71, "output_bias": True}
POST = {
    "ReLU, all tied": {},
    "GELU, target tied": {"activation": "gelu", "tied_embeddings": "decoder"},
    "SiLU, nothing tied": {"activation": "silu", "tied_embeddings": "none"},
    "separate vocabularies": {"joint": False, "tied_embeddings": "decoder"},
    "separate vocabularies, nothing tied": {"joint": False, "tied_embeddings": "none", "scale_embedding": False},
    "dot": {"score": "dot"},
    "bilinear": {"score": "bilinear"},
}
PRE = {
    "pre-norm": {"norm": "pre"},
    "pre-norm, learned positions": {"norm": "pre", "positions": "learned", "activation": "gelu"},
    "pre-norm, bilinear, separate": {"norm": "pre", "score": "bilinear", "joint": False, "tied_embeddings": "none"},
}


QUICK = ("ReLU, all tied",)


def each(*kinds):
    return pytest.mark.parametrize("kind", [
        pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow, id=kind.replace(" ", "_"))
        for kind in kinds])


def make_bundle(directory, *, joint=True, kind="unigram", steps=50, beam_size=3, decoding=None, context=0, **model):
    """Write a model that was trained for a few steps on six sentence pairs, and its validation set beside it."""
    directory.mkdir()
    for name, lines in (("valid.de", GERMAN), ("valid.en", GERMAN)):
        (directory.parent / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"source": "../valid.de", "target": "../valid.en"}
    section = BASE | model
    if section.get("type", "transformer") != "transformer":
        section = {key: value for key, value in section.items() if key != "feed_forward"}
    text = write_yaml({
        "name": "small", "languages": {"source": "de", "target": "en"},
        "data": {"train": [files], "valid": files, "cleaning": {"max_pieces": section["max_positions"] - 4},
                 "context": context},
        "tokenizer": {"joint": joint, "vocab_size": 290, "type": kind}, "model": section,
        "training": {"label_smoothing": 0.0},
        "decoding": {"beam_size": beam_size, "length_penalty": 0.7} | (decoding or {})})
    recipe = parse_recipe(text, directory / "recipe.yaml")
    tokenizers = train_tokenizers(zip(GERMAN, ENGLISH, strict=True),
                                  TokenizerSection(vocab_size=290 if joint else 280, joint=joint, type=kind), 1,
                                  symbols=[CONTEXT_SEPARATOR] if context else [])
    torch.manual_seed(1)
    network = build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size).eval()
    batch = gather(EncodedCorpus(*(EncodedSide.from_lists(side.encode(lines)) for side, lines in (
        (tokenizers.source, in_context(GERMAN, context)), (tokenizers.target, ENGLISH)))), np.arange(len(GERMAN)))
    if recipe.model.output_bias:
        # After these few steps the control tokens would still have 1 % of the probability. CTranslate2 suppresses them
        # before the softmax, which would make its scores higher.
        network.output_bias.data[tokenizers.target.never_generated_ids] = -9
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch).dense(), batch.target_output).backward()
        optimizer.step()
    save_bundle(directory, stored_weights(network), text, tokenizers.files(), {})
    return directory


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "ours")


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory):
    """Function that returns the bundle of a kind, which is trained on the first call."""
    directory = tmp_path_factory.mktemp("kinds")

    @functools.cache
    def make(kind):
        return make_bundle(directory / kind.replace(" ", "_"), **(POST | PRE)[kind])

    return make


def assert_equal_results(parity):
    assert parity.same == parity.lines == len(GERMAN)
    assert parity.worst_score < 1e-4


@each(*POST, *PRE)
def test_ctranslate2_gives_the_translations_and_scores_of_the_original(kind, bundle_of, tmp_path):
    path = bundle_of(kind)
    assert_equal_results(ctranslate2.export_model(path, tmp_path / "theirs"))
    ours, theirs = Translator.load(path, "cpu", "fp32"), CTranslate2Translator.open(tmp_path / "theirs")
    compared = 0
    both = (translator.translate(GERMAN, n_best=2, safety_net=False) for translator in (ours, theirs))
    for n_best, expected in zip(*both, strict=True):
        # The second hypothesis may not end. Such hypotheses are cut at the maximum length and not compared.
        n_best, expected = ([one for one in hypotheses if one.tokens < 20] for hypotheses in (n_best, expected))
        assert [one.text for one in n_best] == [one.text for one in expected]
        compared += len(n_best)
        assert [one.log_probability for one in n_best] == pytest.approx(
            [one.log_probability for one in expected], abs=5e-3)
    assert compared > 2 and len({one.text for one, *_ in ours.translate(GERMAN)}) > 1


@each(*POST)
def test_transformers_gives_the_translations_and_scores_of_the_original(kind, bundle_of, tmp_path):
    path = bundle_of(kind)
    assert_equal_results(huggingface_export.export_model(path, tmp_path / "theirs"))
    if "score" in POST[kind]:                                                   # folded into the projections
        return
    import_model(str(tmp_path / "theirs"), tmp_path / "again")
    before, after = load_bundle(path), load_bundle(tmp_path / "again")
    assert before.weights.keys() == after.weights.keys()
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert before.tokenizer_files == after.tokenizer_files
    assert parse_recipe(before.recipe_text, path).model == parse_recipe(after.recipe_text, path).model.model_copy(
        update={"dropout": BASE.get("dropout", 0.1)})


@pytest.mark.parametrize("library", [ctranslate2, huggingface_export], ids=["ctranslate2", "transformers"])
@pytest.mark.parametrize("source", [None, "lines.de"])
def test_a_model_with_context_is_compared_in_context_and_its_readme_shows_how_to_write_it(library, source, tmp_path):
    path = make_bundle(tmp_path / "ours", context=2, max_positions=171)
    if source:
        source = tmp_path / source
        source.write_text("".join(f"{line}\n" for line in GERMAN), encoding="utf-8")
    assert_equal_results(library.export_model(path, tmp_path / "theirs", source=source))
    readme = (tmp_path / "theirs" / "README.md").read_text(encoding="utf-8")
    assert "up to 2 preceding sentences" in readme and "`It rains.␞ It is wet.`" in readme


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{}, {"separate": True, "end": 1.7}], ids=["joint", "separate"])
def test_an_imported_model_can_be_exported_again(kind, tmp_path):
    make(tmp_path / "theirs", languages=(">>fra<<",), **kind)
    import_model(str(tmp_path / "theirs"), tmp_path / "ours", target_language="fra")
    (tmp_path / "dev").write_text("\n".join(GERMAN), encoding="utf-8")
    for export in (ctranslate2.export_model, huggingface_export.export_model):
        parity = export(tmp_path / "ours", tmp_path / export.__module__, source=tmp_path / "dev")
        assert parity.lines == len(GERMAN) and parity.worst_score < 1e-4
    readme = (tmp_path / ctranslate2.__name__ / "README.md").read_text(encoding="utf-8")
    assert "['>>fra<<'] + source.encode" in readme and "('source.model', 'target.model')" in readme
    import_model(str(tmp_path / huggingface_export.__name__), tmp_path / "again", target_language="fra")
    before, after = load_bundle(tmp_path / "ours"), load_bundle(tmp_path / "again")
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert before.tokenizer_files == after.tokenizer_files


def test_an_earlier_export_is_replaced_unless_it_contains_other_files(bundle, tmp_path):
    output = tmp_path / "theirs"
    for _ in range(2):
        ctranslate2.export_model(bundle, output)
    (output / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match="contains notes.txt besides an earlier export"):
        ctranslate2.export_model(bundle, output)
    assert (output / "notes.txt").read_text() == "mine" and (output / "model.bin").exists()


def test_an_edited_readme_is_kept_when_an_export_is_replaced(bundle, tmp_path, capsys):
    output, readme = tmp_path / "theirs", tmp_path / "theirs" / "README.md"
    ctranslate2.export_model(bundle, output)
    card = readme.read_bytes()
    for _ in range(2):
        readme.write_text("My model.")
        ctranslate2.export_model(bundle, output)
        assert readme.read_text() == "My model." and "README.md has been edited, and is kept" in capsys.readouterr().err
    readme.unlink()
    ctranslate2.export_model(bundle, output)
    assert readme.read_bytes() == card


@pytest.fixture(scope="module")
def converged(tmp_path_factory) -> Path:
    """Directory with a converged model in `ours` and its float32 export in `float32`.

    Its best token has a probability near 1, so that rounding does not change greedy translations. With a beam, rounding
    would reorder the other, improbable hypotheses.
    """
    directory = tmp_path_factory.mktemp("converged")
    ctranslate2.export_model(make_bundle(directory / "ours", steps=150, beam_size=1), directory / "float32")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("quantization", [name for name in ctranslate2.QUANTIZATIONS if name != "float32"])
def test_quantised_exports_are_smaller_and_score_about_the_same(quantization, converged, tmp_path):
    parity = ctranslate2.export_model(converged / "ours", tmp_path / "theirs", quantization)
    assert parity.mean_score < 0.02
    size, float32_size = (
        (directory / "model.bin").stat().st_size for directory in (tmp_path / "theirs", converged / "float32"))
    assert size < 0.75 * float32_size


@pytest.mark.parametrize("model, reason", [
    ({"type": "rnn", "d_model": 26}, "model.type: rnn is not an encoder-decoder Transformer"),
    ({"score": "additive"}, "model.score: additive is not a dot product"),
    ({"normalize": "relu"}, "model.normalize: relu is not softmax"),
    ({"window": 5}, "is limited to a window"), ({"selection": "hard"}, "is not a softmax"),
    ({"copy": True}, "copies pieces of the source"),
])
def test_models_that_other_libraries_do_not_support_are_refused_with_the_reason(model, reason, tmp_path):
    path = make_bundle(tmp_path / "ours", steps=0, **model)
    for export in (ctranslate2.export_model, huggingface_export.export_model):
        with pytest.raises(FormatError, match=reason):
            export(path, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("model, reason", [
    ({"norm": "pre"}, "Marian.* is post-norm"), ({"positions": "learned"}, "does not store learned positions"),
    ({"kind": "words"}, "tokenizer is sentencepiece"),
])
def test_models_that_marian_does_not_support_are_refused_with_the_reason(model, reason, tmp_path):
    with pytest.raises(FormatError, match=reason):
        huggingface_export.export_model(make_bundle(tmp_path / "ours", steps=0, **model), tmp_path / "theirs")


@pytest.mark.parametrize("decoding, unsupported, exported", [
    ({"length_penalty_form": "wu", "coverage_penalty": 0.2},
     "decoding.length_penalty_form and decoding.coverage_penalty", {"beam_size": 3, "length_penalty": 1.0}),
    ({"sampling": True, "temperature": 0.7, "n_best": 7, "forbid": ["dog"]},
     "decoding.forbid and decoding.sampling", {"beam_size": 3, "length_penalty": 0.7, "n_best": 3}),
])
def test_unsupported_decoding_keys_are_left_out_of_the_exported_recipe(decoding, unsupported, exported, tmp_path,
                                                                       capsys):
    path, theirs = make_bundle(tmp_path / "ours", decoding=decoding), tmp_path / "theirs"
    assert main(["export", str(path), "--to", "ctranslate2", "--output", str(theirs)]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert f"does not support {unsupported}: the export" in err
    assert ("length_penalty is 1 instead" in err) == ("length_penalty_form" in decoding)
    recipe, before = (parse_recipe((directory / "recipe.yaml").read_text(encoding="utf-8"), directory / "recipe.yaml")
                      for directory in (theirs, path))
    assert recipe.decoding.model_dump(exclude_defaults=True) == {
        key: value for key, value in exported.items() if value != type(recipe.decoding).model_fields[key].default}
    assert recipe.model_dump(exclude={"decoding"}) == before.model_dump(exclude={"decoding"})
    readme = (theirs / "README.md").read_text(encoding="utf-8")
    assert unsupported in readme and f"length_penalty={exported['length_penalty']}" in readme
    # The command that the export prints works.
    (tmp_path / "in").write_text("ein Hund läuft\n", encoding="utf-8")
    assert f"seq2seq translate --engine ctranslate2 {theirs}" in err
    assert main(["translate", "--engine", "ctranslate2", str(theirs), str(tmp_path / "in"), "-o",
                 str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").strip()


@pytest.mark.slow
def test_the_exponent_of_wu_et_al_is_not_exported_as_the_length_penalty_of_transformers(tmp_path, capsys):
    path = make_bundle(tmp_path / "ours", decoding={"length_penalty_form": "wu"})
    huggingface_export.export_model(path, tmp_path / "theirs")
    generation = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert generation.get("length_penalty", 1.0) == 1.0
    assert "length_penalty is 1 instead" in " ".join(capsys.readouterr().err.split())
    assert "decoding.length_penalty_form" in (tmp_path / "theirs" / "README.md").read_text(encoding="utf-8")


def test_generation_config_contains_the_decoding_settings_of_the_recipe(tmp_path):
    # max_length exceeds the length of the translations: transformers does not count `</s>` at max_length, so that
    # translations that reach it differ.
    decoding = {"min_length": 11, "max_length": 29, "no_repeat_ngram": 1, "safety_net": False}
    path = make_bundle(tmp_path / "ours", decoding=decoding)
    huggingface_export.export_model(path, tmp_path / "theirs")
    package = huggingface_export.library()
    tokenizer = package.MarianTokenizer.from_pretrained(tmp_path / "theirs")
    model = package.MarianMTModel.from_pretrained(tmp_path / "theirs")
    ours = Translator.load(path, "cpu", "fp32").translate(GERMAN)
    for line, (best, *_) in zip(GERMAN, ours, strict=True):
        (output,) = model.generate(**tokenizer([line], return_tensors="pt"))
        assert tokenizer.decode(output, skip_special_tokens=True) == best.text
        assert 11 <= best.tokens - 1 < 29
    assert model.generation_config.max_length == 31


def test_a_model_with_word_tokenizer_is_exported_to_ctranslate2(tmp_path):
    path = make_bundle(tmp_path / "ours", kind="words")
    parity = ctranslate2.export_model(path, tmp_path / "theirs")
    assert parity.same == parity.lines
    assert "line.split()" in (tmp_path / "theirs" / "README.md").read_text(encoding="utf-8")


# The parity check


def test_a_damaged_export_to_ctranslate2_is_refused(bundle, tmp_path, monkeypatch):
    convert = ctranslate2.convert

    def damaged(model, *arguments):
        model.decoder[1].feed_forward.outer.weight.data[3] += 5
        convert(model, *arguments)

    monkeypatch.setattr(ctranslate2, "convert", damaged)
    for quantization in ("float32", "int8"):
        with pytest.raises(FormatError, match=r"export to ctranslate2 \(\w+\) is refused.*nats|is refused") as refused:
            ctranslate2.export_model(bundle, tmp_path / "theirs", quantization)
        assert "source: ein Hund läuft\n    ours: " in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_damaged_export_to_huggingface_is_refused(bundle, tmp_path, monkeypatch):
    weights_to_marian = huggingface_export.weights_to_marian

    def damaged(*arguments):
        weights = weights_to_marian(*arguments)
        weights["model.encoder.layers.0.fc1.bias"] = weights["model.encoder.layers.0.fc1.bias"] + 5
        return weights

    monkeypatch.setattr(huggingface_export, "weights_to_marian", damaged)
    with pytest.raises(FormatError, match="the export to huggingface is refused"):
        huggingface_export.export_model(bundle, tmp_path / "theirs")
    assert not list(tmp_path.iterdir())


def parity_of(same=100, worst=0.0, mean=0.0, gaps=()):
    return Parity(100, same, worst, mean, [Difference(7, "Hund", "dog", "cat", gap) for gap in gaps])


def test_an_export_is_accepted_only_within_its_tolerance():
    each, mean = Tolerance(1e-3, 0.99, each=True), Tolerance(0.02, 0.7, each=False)
    require(parity_of(worst=9e-4), each, "it")
    require(parity_of(same=99, gaps=[0.5]), each, "it")
    require(parity_of(same=97, gaps=[1e-5, -1e-5, 0.5]), each, "it")            # equal scores count as equal
    require(parity_of(same=70, worst=3.0, mean=0.019, gaps=[0.1] * 30), mean, "it")
    for refused, tolerance in ((parity_of(worst=2e-3), each), (parity_of(same=98, gaps=[0.5] * 2), each),
                               (parity_of(worst=float("nan")), each), (parity_of(mean=0.021), mean),
                               (parity_of(same=69, gaps=[0.1] * 31), mean)):
        with pytest.raises(FormatError, match="it is refused"):
            require(refused, tolerance, "it")
    with pytest.raises(FormatError, match="source: Hund\n    ours:   dog\n    theirs: cat  \\(score gap 0.5000\\)"):
        require(parity_of(same=98, gaps=[0.5] * 2), each, "it")


@pytest.mark.parametrize(("lines", "same", "tolerance", "advised"), [
    (99, 98, Tolerance(1e-3, 0.99, each=True), "In fewer than 100 lines, a single different translation exceeds the "),
    (100, 98, Tolerance(1e-3, 0.99, each=True), ""), (3, 2, Tolerance(0.02, 0.7, each=False), "In fewer than 4 lines,"),
    (4, 2, Tolerance(0.02, 0.7, each=False), "")])
def test_an_export_that_is_refused_for_one_of_few_translations_can_be_compared_on_more(lines, same, tolerance, advised):
    parity = Parity(lines, same, 1e-4, 1e-5, [Difference(2, "Hund", "dog", "cat", 0.5)] * (lines - same))
    with pytest.raises(FormatError) as refused:
        require(parity, tolerance, "it")
    assert advised in str(refused.value) and ("--source FILE and --lines N" in str(refused.value)) == bool(advised)
    with pytest.raises(FormatError) as refused:
        require(replace(parity, worst_score=2.0, mean_score=2.0), tolerance, "it")
    assert "In fewer than" not in str(refused.value)


def test_an_export_is_refused_if_nothing_was_compared_or_a_score_is_nan(bundle):
    each = Tolerance(1e-3, 0.99, each=True)
    with pytest.raises(FormatError, match="all lines of the development set are too long"):
        require(Parity(0, 0, 0.0, 0.0, []), each, "it")
    ours = Translator.load(bundle, "cpu", "fp32")

    class Theirs:
        translate = ours.translate

        def score(self, pairs):
            first, *others = ours.score(pairs)
            return [first, *(PairScore(float("nan"), other.tokens) for other in others)]

    with pytest.raises(FormatError, match="differ by at most nan"):
        require(compare(ours, Theirs(), ["Hund", "Katze"]), each, "it")


@pytest.mark.slow
def test_a_directory_that_is_not_an_export_is_not_changed(converged, tmp_path):
    bundle = converged / "ours"
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(FormatError, match="exists and is not an export"):
        ctranslate2.export_model(bundle, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    ctranslate2.export_model(bundle, tmp_path / "theirs")
    ctranslate2.export_model(bundle, tmp_path / "theirs", "int16")              # an older export is replaced
    assert "int16" in (tmp_path / "theirs" / "README.md").read_text()
    assert json.loads((tmp_path / "theirs" / "parity.json").read_text())["lines"] == len(GERMAN)


def test_the_validation_set_is_found_through_the_recipe_of_the_run(tmp_path):
    """The recipe in the bundle has a relative path that does not exist there; the recipe of the run has the full path.
    """
    bundle = make_bundle(tmp_path / "elsewhere")
    written = (bundle / "recipe.yaml").read_text()
    run = tmp_path / "runs" / "small"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(written.replace("../valid", str(tmp_path / "valid")), encoding="utf-8")
    bundle.rename(run / "best")
    assert not (run / "valid.de").exists()
    assert_equal_results(ctranslate2.export_model(run, tmp_path / "theirs"))
    assert (tmp_path / "theirs" / "recipe.yaml").read_text() == written


def test_an_export_without_a_development_set_is_refused(tmp_path):
    path = make_bundle(tmp_path / "ours")
    (tmp_path / "valid.de").unlink()
    with pytest.raises(FormatError, match="development set, which cannot be read: .* with --source"):
        ctranslate2.export_model(path, tmp_path / "theirs")
    (tmp_path / "blank").write_text(" \n\n")
    with pytest.raises(FormatError, match="has no lines"):
        ctranslate2.export_model(path, tmp_path / "theirs", source=tmp_path / "blank")


def test_the_development_set_may_be_compressed_and_must_be_utf8(bundle, tmp_path):
    contents = "\ufeff" + "".join(f"{line}\r\n" for line in GERMAN)
    (tmp_path / "dev.gz").write_bytes(gzip.compress(contents.encode()))
    recipe = parse_recipe((bundle / "recipe.yaml").read_text(), bundle / "recipe.yaml")
    assert development_lines(recipe, tmp_path / "dev.gz", 5) == GERMAN[:5]
    (tmp_path / "spaces").write_text("".join(f" {line}\t \n" for line in GERMAN))
    assert development_lines(recipe, tmp_path / "spaces", 5) == GERMAN[:5]
    (tmp_path / "dev").write_bytes("Hund\nKätzchen\n".encode("latin1"))
    with pytest.raises(FormatError, match="dev:2: byte 0xe4 at position 2 is not UTF-8"):
        development_lines(recipe, tmp_path / "dev", 5)
    assert_equal_results(ctranslate2.export_model(bundle, tmp_path / "theirs", source=tmp_path / "dev.gz"))


def test_an_output_directory_that_cannot_be_created_is_refused(bundle, tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    for output in (tmp_path / "file" / "x", tmp_path / "file" / "x" / "y"):
        for format in ("ctranslate2", "huggingface"):
            assert main(["export", str(bundle), "--to", format, "--output", str(output)]) == 2
            assert "cannot be made" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "precious"


def test_a_missing_library_is_reported_with_the_command_that_installs_it(bundle, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for interop, name in ((ctranslate2, "ctranslate2"), (huggingface_export, "transformers")):
        with pytest.raises(UserError, match=f"pip install {name}$"):
            interop.export_model(bundle, tmp_path / "theirs")


# Translation with CTranslate2


@pytest.fixture(scope="module")
def exported(bundle, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / "theirs"
    ctranslate2.export_model(bundle, directory)
    return directory


def test_the_command_line_translates_with_ctranslate2(bundle, exported, tmp_path, capsys):
    (tmp_path / "in").write_text("ein Hund läuft\n\n  eine Katze schläft  \nder Hund schläft", encoding="utf-8")
    results = []
    for arguments in ([str(bundle)], [str(exported), "--engine", "ctranslate2"]):
        assert main(["translate", *arguments, str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
        results.append((tmp_path / "out").read_text(encoding="utf-8"))
    assert results[0] == results[1] and results[0].count("\n") == 3
    assert "translating with CTranslate2 in float32 on cpu" in capsys.readouterr().err


def test_the_export_command_prints_the_result_of_the_comparison(bundle, tmp_path, capsys):
    assert main(["export", str(bundle), "--to", "ctranslate2", "--output", str(tmp_path / "theirs")]) == 0
    assert "6 of 6 translations are equal; the log-probabilities" in capsys.readouterr().err
    assert main(["export", str(bundle), "--to", "huggingface", "--quantization", "int8", "-o", "x"]) == 2


@pytest.mark.slow
def test_long_lines_are_translated_in_parts(tmp_path):
    bundle = make_bundle(tmp_path / "ours", steps=150)          # converged, so that rounding changes no translation
    ctranslate2.export_model(bundle, tmp_path / "theirs")
    line = " ".join(GERMAN * 3)
    ours, theirs = (translator.translate([line])[0][0] for translator in (
        Translator.load(bundle, "cpu", "fp32"), CTranslate2Translator.open(tmp_path / "theirs")))
    assert ours.parts == theirs.parts > 1 and ours.text == theirs.text


@pytest.mark.parametrize("decoding, key", [
    ({"sampling": True}, "sampling"), ({"forbid": ("dog",)}, "forbid"), ({"mbr": 2}, "mbr"),
    ({"coverage_penalty": 0.2}, "coverage_penalty"), ({"require": ("dog",)}, "require"),
    ({"length_penalty_form": "wu"}, "length_penalty_form"), ({"word_confidence": True}, "word_confidence"),
])
def test_decoding_options_that_ctranslate2_does_not_support_are_refused(decoding, key, exported):
    with pytest.raises(UserError, match=f"CTranslate2 does not support {key}"):
        CTranslate2Translator.open(exported).translate(["ein Hund"], **decoding)


@pytest.mark.parametrize("precision, flags, expected", [
    ("auto", {"avx2", "sse4a"}, "float32"), ("auto", {"avx2"}, "default"), ("auto", {"asimd"}, "default"),
    ("auto", {"avx2", "sse4a", "avx512_vnni"}, "default"), ("int8", {"avx2", "sse4a"}, "int8"),
])
def test_processors_whose_int8_is_inexact_in_ctranslate2_compute_in_fp32(precision, flags, expected, monkeypatch):
    monkeypatch.setattr(ctranslate2, "cpu_flags", lambda: flags)
    assert ctranslate2.compute_type(precision) == expected


@pytest.mark.parametrize("device, expected", [("cpu", ("cpu", 0)), ("cuda", ("cuda", 0)), ("cuda:1", ("cuda", 1))])
def test_the_model_is_loaded_on_the_requested_device(device, expected, exported, monkeypatch):
    class Stub:
        def __init__(self, directory, device, device_index, **options):
            self.device, self.compute_type, self.index = device, "float32", device_index

    monkeypatch.setattr(ctranslate2.library(), "Translator", Stub)
    opened = CTranslate2Translator.open(exported, device).translator
    assert (opened.device, opened.index) == expected
    with pytest.raises(UserError, match="there is no device 'cuda:one'"):
        CTranslate2Translator.open(exported, "cuda:one")


def test_an_export_with_files_of_different_models_is_refused(exported, tmp_path):
    directory = tmp_path / "mixed"
    shutil.copytree(exported, directory)
    vocabulary = directory / "shared_vocabulary.json"
    pieces = json.loads(vocabulary.read_text(encoding="utf-8"))
    vocabulary.write_text(json.dumps([*pieces[:-2], pieces[-1], pieces[-2]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"shared_vocabulary.json and the tokenizer .* have different pieces"):
        CTranslate2Translator.open(directory)


def test_an_export_whose_recipe_is_not_utf8_is_refused(exported, tmp_path):
    directory = tmp_path / "damaged"
    shutil.copytree(exported, directory)
    (directory / "recipe.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(CheckpointError, match="recipe.yaml is damaged"):
        CTranslate2Translator.open(directory)


def test_a_directory_without_an_export_is_refused(bundle, tmp_path, exported, capsys):
    with pytest.raises(CheckpointError, match="it has no model.bin. Export one: seq2seq export"):
        CTranslate2Translator.open(bundle)
    for name in ("recipe.yaml", "tokenizer.model", "config.json"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    (tmp_path / "model.bin").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot load"):
        CTranslate2Translator.open(tmp_path)
    assert main(["translate", str(exported), "--engine", "ctranslate2", "--ensemble", "x"]) == 2
    assert "Remove --ensemble" in capsys.readouterr().err
