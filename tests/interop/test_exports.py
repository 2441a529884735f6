"""An exported model gives the same results in the other library as the original, or the export is refused."""

import gzip
import shutil

import numpy as np
import pytest

from seq2seq.cli import main
from seq2seq.errors import FormatError, OptionError
from seq2seq.inference.load_model import read_model
from seq2seq.interop import ctranslate2, huggingface_export
from seq2seq.interop.ctranslate2 import CTranslate2Model
from seq2seq.interop.exporting import Difference, Parity, Tolerance, compare, development_lines, require
from seq2seq.interop.huggingface_import import import_model
from seq2seq.storage.checkpoints import load_bundle, stored_recipe
from seq2seq.tokenizers.source import Source
from seq2seq.translation.scoring import PairScore, pair_scores
from seq2seq.translation.translator import Translator
from tests.exportable_models import BASE, make_bundle
from tests.marian_models import GERMAN, make

for package in ("transformers", "ctranslate2"):
    pytest.importorskip(package)

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
    "pre-norm, positions and start of fairseq": {"norm": "pre", "positions": "fairseq", "decoder_start": "</s>"},
    "pre-norm, norm of the embedding": {"norm": "pre", "positions": "learned", "embedding_norm": True},
    "pre-norm, learned positions": {"norm": "pre", "positions": "learned", "activation": "gelu"},
    "parts of T5": {"norm": "pre", "positions": "relative", "norm_type": "rms", "gated": True, "bias": False,
                    "activation": "gelu_tanh", "head_size": 3, "score": "dot", "tied_embeddings": "inputs"},
    "pre-norm, bilinear, separate": {"norm": "pre", "score": "bilinear", "joint": False, "tied_embeddings": "none"},
}


QUICK = ("ReLU, all tied", "parts of T5")


def each(*kinds):
    return pytest.mark.parametrize("kind", [
        pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow, id=kind.replace(" ", "_"))
        for kind in kinds])


def assert_equal_results(parity):
    assert parity.same == parity.lines == len(GERMAN)
    assert parity.worst_score < 1e-4


OTHER = {"post-norm, RMS, gate": {"norm_type": "rms", "gated": True, "activation": "silu", "head_size": 5}}


@each(*POST, *PRE, *OTHER)
def test_ctranslate2_gives_the_translations_and_scores_of_the_original(kind, tmp_path):
    path = make_bundle(tmp_path / "ours", **(POST | PRE | OTHER)[kind])
    assert_equal_results(ctranslate2.export_model(path, tmp_path / "theirs"))


@each(*POST)
def test_transformers_gives_the_translations_and_scores_of_the_original(kind, tmp_path):
    path = make_bundle(tmp_path / "ours", **(POST | PRE)[kind])
    assert_equal_results(huggingface_export.export_model(path, tmp_path / "theirs"))
    if "score" in POST[kind]:                                                   # folded into the projections
        return
    import_model(str(tmp_path / "theirs"), tmp_path / "again")
    before, after = load_bundle(path), load_bundle(tmp_path / "again")
    assert before.weights.keys() == after.weights.keys()
    assert all(np.array_equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert before.tokenizer_files == after.tokenizer_files
    assert stored_recipe(path).model == stored_recipe(tmp_path / "again").model.model_copy(
        update={"dropout": BASE.get("dropout", 0.1)})


@pytest.mark.slow
@pytest.mark.parametrize(("library", "source"), [(ctranslate2, None), (huggingface_export, "lines.de")],
                         ids=["ctranslate2", "transformers"])
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
    assert all(np.array_equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert before.tokenizer_files == after.tokenizer_files


def test_an_export_replaces_nothing(bundle, tmp_path):
    output = tmp_path / "theirs"
    ctranslate2.export_model(bundle, output)
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    with pytest.raises(OptionError):
        ctranslate2.export_model(bundle, output)
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before


@pytest.fixture(scope="module")
def exported(bundle, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / "theirs"
    ctranslate2.export_model(bundle, directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("quantization", [name for name in ctranslate2.QUANTIZATIONS if name != "float32"])
def test_quantised_exports_are_smaller_and_score_about_the_same(quantization, exported, tmp_path):
    # Greedy: with a beam, rounding would reorder the improbable hypotheses after the best one.
    path = make_bundle(tmp_path / "ours", steps=150, beam_size=1)
    parity = ctranslate2.export_model(path, tmp_path / "theirs", quantization)
    assert parity.mean_score < 0.02
    size, float32_size = ((directory / "model.bin").stat().st_size for directory in (tmp_path / "theirs", exported))
    assert size < 0.75 * float32_size


@pytest.mark.parametrize("decoding, unsupported, length_penalty", [
    ({"length_penalty_form": "wu", "coverage_penalty": 0.2},
     "decoding.length_penalty_form and decoding.coverage_penalty", 1.0),
    pytest.param({"sampling": True, "temperature": 0.7, "n_best": 7, "forbid": ["dog"]},
                 "decoding.forbid and decoding.sampling", 0.7, marks=pytest.mark.slow)])
def test_unsupported_decoding_keys_are_left_out_of_an_export(decoding, unsupported, length_penalty, tmp_path, capsys):
    path, theirs = make_bundle(tmp_path / "ours", decoding=decoding), tmp_path / "theirs"
    assert main(["export", str(path), "--to", "ctranslate2", "--output", str(theirs)]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert f"does not support {unsupported}: the export" in err
    assert ("length_penalty is 1 instead" in err) == ("length_penalty_form" in decoding)
    readme = (theirs / "README.md").read_text(encoding="utf-8")
    assert unsupported in readme and f"beam_size=3, length_penalty={length_penalty}" in readme


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("file, contents", [
    ("model.bin", b""), ("model.bin", bytes(100)), ("config.json", b"{"), ("config.json", b"[]"),
    ("shared_vocabulary.json", b"[]"), ("shared_vocabulary.json", b'["a", "b", "c"]'),
    ("shared_vocabulary.json", b"{}"), ("shared_vocabulary.json", None), ("model.bin", None)])
def test_a_file_of_an_export_to_ctranslate2_that_is_damaged_on_the_disk_is_an_error(bundle, tmp_path, file, contents):
    model, recipe, tokenizers = read_model(bundle)
    ctranslate2.convert(model, recipe.model, tokenizers, tmp_path)
    sound = CTranslate2Model(tmp_path, tokenizers, recipe)
    options = recipe.decoding.model_dump() | {"max_length": 9, "min_length": 0}
    assert sound.translate([Source("ein Hund läuft")], **options)
    (tmp_path / file).unlink()
    if contents is not None:
        (tmp_path / file).write_bytes(contents)
    with pytest.raises(FormatError, match="CTranslate2 cannot run"):
        CTranslate2Model(tmp_path, tokenizers, recipe).translate([Source("ein Hund läuft")], **options)


def test_a_damaged_export_to_huggingface_is_refused(bundle, tmp_path, monkeypatch):
    weights_to_huggingface = huggingface_export.weights_to_huggingface

    def damaged(*arguments):
        weights = weights_to_huggingface(*arguments)
        weights["model.encoder.layers.0.fc1.bias"] = weights["model.encoder.layers.0.fc1.bias"] + 5
        return weights

    monkeypatch.setattr(huggingface_export, "weights_to_huggingface", damaged)
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


def test_an_export_is_refused_if_nothing_was_compared_or_a_score_is_nan(bundle):
    each = Tolerance(1e-3, 0.99, each=True)
    with pytest.raises(FormatError, match="all lines of the validation set are too long"):
        require(Parity(0, 0, 0.0, 0.0, []), each, "it")
    ours = Translator.load(bundle, "cpu", "fp32")

    class Theirs:
        translate = ours.translate

        def score(self, pairs):
            first, *others = pair_scores(ours, pairs)
            return [first, *(PairScore(float("nan"), other.tokens) for other in others)]

    with pytest.raises(FormatError, match="differ by at most nan"):
        require(compare(ours, Theirs(), [Source("Hund"), Source("Katze")]), each, "it")


def test_a_bundle_outside_a_run_needs_a_development_set(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "copy")
    with pytest.raises(FormatError, match="Name a file of source lines with --source"):
        ctranslate2.export_model(copy, tmp_path / "theirs")
    (tmp_path / "dev").write_text("".join(f"{line}\n" for line in GERMAN), encoding="utf-8")
    assert_equal_results(ctranslate2.export_model(copy, tmp_path / "theirs", source=tmp_path / "dev"))


def test_the_development_set_may_be_compressed_and_must_be_utf8(bundle, tmp_path):
    contents = "\ufeff" + "".join(f"{line}\r\n" for line in GERMAN)
    (tmp_path / "dev.gz").write_bytes(gzip.compress(contents.encode()))
    recipe = stored_recipe(bundle)
    assert development_lines(recipe, tmp_path / "dev.gz", 5) == list(map(Source, GERMAN[:5]))
    (tmp_path / "spaces").write_text("".join(f" {line}\t \n" for line in GERMAN))
    assert [line.text.strip() for line in development_lines(recipe, tmp_path / "spaces", 5)] == GERMAN[:5]
    (tmp_path / "dev").write_bytes("Hund\nKätzchen\n".encode("latin1"))
    with pytest.raises(FormatError, match="dev:2: byte 0xe4 at position 2 is not UTF-8"):
        development_lines(recipe, tmp_path / "dev", 5)
    assert_equal_results(ctranslate2.export_model(bundle, tmp_path / "theirs", source=tmp_path / "dev.gz"))




def test_the_export_command_prints_the_result_of_the_comparison(bundle, tmp_path, capsys):
    assert main(["export", str(bundle), "--to", "ctranslate2", "--output", str(tmp_path / "theirs")]) == 0
    assert "6 of 6 translations are equal; the log-probabilities" in capsys.readouterr().err
    assert main(["export", str(bundle), "--to", "huggingface", "--quantization", "int8", "-o", "x"]) == 2
