"""Packages for Argos Translate: their files, the parity check, and the real argostranslate where it is installed.

Argos Translate needs other versions of some packages, so it has an environment of its own. To run its test:

    python -m venv argos && argos/bin/pip install argostranslate onnx
    SEQ2SEQ_ARGOS_PYTHON=$PWD/argos/bin/python pytest -m "" tests/interop/test_argos.py
"""

import json
import os
import subprocess
import zipfile

import pytest

pytest.importorskip("ctranslate2", reason="the extra interop is not installed")

from seq2seq.cli import main
from seq2seq.errors import FormatError
from seq2seq.interop import argos, ctranslate2
from seq2seq.interop.exporting import read_exportable
from tests.marian_models import GERMAN

FOLDER = "translate-de_en-1_0"
# A splitter for MiniSBD that never splits: the last character of a paragraph ends a sentence.
MAKE_SPLITTER = """
import json, sys, numpy, onnx
from onnx import TensorProto, helper, numpy_helper
numbers = [numpy_helper.from_array(numpy.array(values, numpy.float32), name)
           for name, values in (("weight", [[0, 0, 1, 0, 0]]), ("bias", [0.5, 0, 0, 0, 0]))]
graph = helper.make_graph(
    [helper.make_node("MatMul", ["features", "weight"], ["products"]),
     helper.make_node("Add", ["products", "bias"], ["scores"])], "splitter",
    [helper.make_tensor_value_info("units", TensorProto.INT64, ["batch", "length"]),
     helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "length", 1])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "length", 5])], numbers)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
vocabulary = {"lang": "xx", "idx": 0, "cutoff": 0, "lower": False, "_id2unit": ["<PAD>", "<UNK>"],
              "_unit2id": {"<PAD>": 0, "<UNK>": 1}}
helper.set_model_props(model, {"lang_code": "xx", "config": json.dumps({"feat_funcs": ["end_of_para"]}),
                               "vocab": json.dumps(vocabulary)})
onnx.save(model, sys.argv[1])
"""
TRANSLATE = """
import sys
from argostranslate import package, translate
package.install_from_path(sys.argv[1])
found = {language.code: language for language in translate.get_installed_languages()}
translation = found["de"].get_translation(found["en"])
for line in sys.stdin.read().splitlines():
    print(translation.hypotheses(line, 1)[0].value)
"""


@pytest.fixture(scope="module")
def package(bundle, tmp_path_factory):
    """Path of a package in float32, and the result of its export."""
    output = tmp_path_factory.mktemp("package") / "de_en.argosmodel"
    return output, argos.export_model(bundle, output, "float32")


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_package_has_the_files_that_argos_translate_reads(package, bundle):
    files = contents(package[0])
    assert {name.removeprefix(f"{FOLDER}/") for name in files} == {
        "README.md", "metadata.json", "model/config.json", "model/model.bin", "model/shared_vocabulary.json",
        "sentencepiece.model", "parity.json"}
    assert json.loads(files[f"{FOLDER}/metadata.json"]) == {
        "package_version": "1.0", "argos_version": "1.11", "from_code": "de", "from_name": "German", "to_code": "en",
        "to_name": "English"}
    assert files[f"{FOLDER}/sentencepiece.model"] == (bundle / "tokenizer.model").read_bytes()


def test_the_result_tells_what_argos_translate_does_differently(package):
    _, exported = package
    assert exported.parity.lines == len(GERMAN) == exported.parity.same
    notes = " ".join(exported.notes)
    for told in ("beam of 4, a length penalty of 0.2 and a minimum length of 1", "does not retry", "replaces _",
                 "<0xE4>", "downloads one", "pieces"):
        assert told in notes
    assert all(note in contents(package[0])[f"{FOLDER}/README.md"].decode() for note in exported.notes)


def test_the_same_model_gives_the_same_bytes_and_an_earlier_package_stays(package, bundle, tmp_path):
    output = tmp_path / "new" / "de_en.argosmodel"
    argos.export_model(bundle, output, "float32")
    assert output.read_bytes() == package[0].read_bytes()
    with pytest.raises(FormatError, match="exists already"):
        argos.export_model(bundle, output, "float32")
    assert output.read_bytes() == package[0].read_bytes() and list(output.parent.iterdir()) == [output]


def test_a_package_that_translates_differently_is_not_written(bundle, tmp_path, monkeypatch):
    def convert(model, *arguments):
        model.decoder[0].feed_forward.inner.weight.data.neg_()
        return ctranslate2.convert(model, *arguments)

    monkeypatch.setattr(argos, "convert", convert)
    with pytest.raises(FormatError, match="the package for Argos Translate .int8. is refused, because its results"):
        argos.export_model(bundle, tmp_path / "a.argosmodel")
    assert not (tmp_path / "a.argosmodel").exists()


def test_a_splitter_is_packed(bundle, tmp_path):
    (tmp_path / "de.onnx").write_bytes(b"splitter")
    (tmp_path / "stanza" / "de").mkdir(parents=True)
    (tmp_path / "stanza" / "resources.json").write_text("{}")
    (tmp_path / "stanza" / "de" / "model.pt").write_bytes(b"weights")
    (tmp_path / "stanza" / "outside").symlink_to("/etc/hostname")
    for splitter, names in (("de.onnx", {"minisbd/de.onnx"}),
                            ("stanza", {"stanza/resources.json", "stanza/de/model.pt"})):
        output = tmp_path / f"{splitter}.argosmodel"
        exported = argos.export_model(bundle, output, "float32", tmp_path / splitter)
        files = {name.removeprefix(f"{FOLDER}/") for name in contents(output)}
        assert {name for name in files if name.startswith(("minisbd", "stanza"))} == names
        notes = " ".join(exported.notes)
        assert "downloads one" not in notes and ("LibreTranslate ignores" in notes) == (splitter == "stanza")


@pytest.mark.parametrize("code, expected", [("de", "de"), ("deu", "de"), ("zh", "zh"), ("zho_Hans", "zh"),
                                            ("zh-TW", "zt"), ("pt-BR", "pb"), ("pt", "pt"), ("nob", "nb")])
def test_languages_have_the_codes_of_argos_translate(code, expected):
    assert argos.argos_code(code) == expected


def test_the_command_writes_a_package(bundle, tmp_path, capsys):
    output = tmp_path / "a.argosmodel"
    assert main(["export", str(bundle), "--to", "argos", "-o", str(output)]) == 0
    told = capsys.readouterr().err
    assert "Argos Translate searches with a beam of 4" in told and f"argospm install {output}" in told


@pytest.mark.slow
def test_argos_translate_installs_a_package_offline_and_translates_like_ctranslate2(bundle, tmp_path):
    python = os.environ.get("SEQ2SEQ_ARGOS_PYTHON")
    if not python:
        pytest.skip("SEQ2SEQ_ARGOS_PYTHON does not name a Python with argostranslate and onnx")
    splitter, output = tmp_path / "de.onnx", tmp_path / "a.argosmodel"
    subprocess.run([python, "-c", MAKE_SPLITTER, str(splitter)], check=True)
    argos.export_model(bundle, output, "float32", splitter)
    ctranslate2.export_model(bundle, tmp_path / "directory", "float32")
    offline = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    places = {name: str(tmp_path / "argos") for name in (
        "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME")}
    places |= {"ARGOS_PACKAGES_DIR": str(tmp_path / "packages"), "ARGOS_COMPUTE_TYPE": "float32"}
    theirs = subprocess.run([python, "-c", TRANSLATE, str(output)], input="\n".join(GERMAN), text=True, check=True,
                            stdout=subprocess.PIPE, env=os.environ | offline | places)
    exportable = read_exportable(bundle, "ctranslate2", ctranslate2.CTRANSLATE2_DECODING_KEYS)
    ours = ctranslate2.CTranslate2Model(tmp_path / "directory", exportable.tokenizers, exportable.recipe).translate(
        GERMAN, beam_size=4, length_penalty=0.2, min_length=1, max_length=100)
    assert theirs.stdout.splitlines() == [best.text.replace("_", " ") for best, *_ in ours]
