"""Messages about models that cannot be imported or exported. Nothing is written then."""

import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from catalogue import Catalogue
from safetensors.torch import load_file, save_file

for package in ("transformers", "ctranslate2"):
    pytest.importorskip(package)

from seq2seq.interop import argos, ctranslate2, huggingface_export  # noqa: E402
from seq2seq.interop.huggingface_import import import_model, local_folder  # noqa: E402
from tests.exportable_models import make_bundle  # noqa: E402
from tests.marian_models import make  # noqa: E402

messages = Catalogue("interop")
Damage = Callable[[Path], object]


@cache
def undamaged() -> TemporaryDirectory:
    """Directory with a Marian model."""
    directory = TemporaryDirectory()
    make(Path(directory.name) / "theirs")
    return directory


def with_values(name: str, **changes: object) -> Damage:
    """Return a function that changes values in a JSON file of a model."""
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    return damage


def with_file(name: str, contents: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(contents)


def with_weights(change: Callable[[torch.Tensor], torch.Tensor], suffix: str) -> Damage:
    """Return a function that changes the weights of a model whose names end in a suffix."""
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        weights = {name: change(weight).contiguous() if name.endswith(suffix) else weight.clone()
                   for name, weight in load_file(path).items()}
        path.unlink()
        save_file(weights, path)
    return damage


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_pickle(contents: bytes) -> Damage:
    def damage(folder: Path) -> None:
        without_weights(folder)
        (folder / "pytorch_model.bin").write_bytes(contents)
    return damage


def import_refused(folder: Path, damage: Damage) -> None:
    shutil.copytree(Path(undamaged().name) / "theirs", folder / "theirs")
    damage(folder / "theirs")
    try:
        import_model(str(folder / "theirs"), folder / "ours")
    finally:
        assert [path.name for path in folder.iterdir()] == ["theirs"]


def heads(number: object) -> dict[str, object]:
    return {"encoder_attention_heads": number, "decoder_attention_heads": number}


def widths(number: object) -> dict[str, object]:
    return {"encoder_ffn_dim": number, "decoder_ffn_dim": number}


for changes in ({"model_type": "bart"}, {"decoder_ffn_dim": 59}, {"activation_function": "tanh"},
                {"activation_function": ["relu"]}, {"normalize_before": True}, {"encoder_layers": 3},
                {"encoder_layers": 1}, {"encoder_layers": 10**12}, {"d_model": 44}, {"d_model": "22"}, {"d_model": -2},
                {"eos_token_id": 5000}, {"dropout": None}, heads(7), heads([11]), widths(59), widths(10**18),
                {"max_position_embeddings": None}, {"decoder_start_token_id": [1]}):
    messages.add(f"import: config.json {changes}",
                 partial(import_refused, damage=with_values("config.json", **changes)))
for name, changes in (("tokenizer", {"unk_token": 5}), ("tokenizer", {"source_lang": "a/b"}),
                      ("generation", {"num_beams": "x"}), ("generation", {"num_beams": -3}),
                      ("generation", {"max_length": "40"}), ("generation", {"length_penalty": [1]})):
    messages.add(f"import: {name}_config.json {changes}",
                 partial(import_refused, damage=with_values(f"{name}_config.json", **changes)))
for name, contents in (("config.json", b"[]"), ("tokenizer_config.json", b"[]"), ("generation_config.json", b"[]"),
                       ("config.json", b"{"), ("vocab.json", b'{"a": 1}'), ("vocab.json", b'["a"]'),
                       ("source.spm", b""), ("target.spm", b"nothing"), ("model.safetensors", b"no tensors")):
    messages.add(f"import: {name} {contents.decode() or 'empty'}",
                 partial(import_refused, damage=with_file(name, contents)))
for name, damage in {
    "no weights": without_weights, "an empty pickle": with_pickle(b""), "no pickle": with_pickle(b"junk"),
    "a bias too short": with_weights(lambda weight: weight[:, :5], "final_logits_bias"),
    "too few rows": with_weights(lambda weight: weight[:10], "fc1.weight"),
    "too few columns": with_weights(lambda weight: weight[:, :10], "q_proj.weight"),
    "a number": with_weights(lambda weight: torch.tensor(1.0), "fc1.weight"),
    "NaN": with_weights(lambda weight: weight * float("nan"), "fc2.bias"),
}.items():
    messages.add(f"import: weights: {name}", partial(import_refused, damage=damage))


@messages
def import_of_a_directory_that_does_not_exist(folder: Path) -> None:
    local_folder("no/such/place")


EXPORTS = {"ctranslate2": ctranslate2.export_model, "huggingface": huggingface_export.export_model,
           "argos": lambda path, output: argos.export_model(path, output.with_suffix(".argosmodel"))}


def export_refused(folder: Path, format: str, **settings: object) -> None:
    path = make_bundle(folder / "ours", steps=0, **settings)
    before = sorted(folder.iterdir())
    try:
        EXPORTS[format](path, folder / "theirs")
    finally:
        assert sorted(folder.iterdir()) == before


for format, settings in (
    ("ctranslate2", {"type": "rnn"}), ("huggingface", {"score": "additive"}), ("ctranslate2", {"normalize": "relu"}),
    ("ctranslate2", {"window": 5}), ("huggingface", {"selection": "hard"}), ("ctranslate2", {"copy": True}),
    ("huggingface", {"norm": "pre"}), ("huggingface", {"positions": "learned"}),
    ("huggingface", {"decoder_start": "</s>"}), ("huggingface", {"kind": "words"}),
    ("argos", {"joint": False, "tied_embeddings": "decoder"}), ("argos", {"kind": "words"}), ("argos", {"window": 2}),
):
    messages.add(f"export to {format}: {settings}", partial(export_refused, format=format, **settings))


def bundle_beside(folder: Path) -> Path:
    return make_bundle(folder / "ours", steps=0)


@messages
def export_over_a_directory_that_is_no_export(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes").write_text("precious")
    try:
        ctranslate2.export_model(bundle_beside(folder), folder / "mine")
    finally:
        assert (folder / "mine" / "notes").read_text() == "precious"


@messages
def export_into_a_file(folder: Path) -> None:
    (folder / "file").write_text("precious")
    huggingface_export.export_model(bundle_beside(folder), folder / "file" / "x")


@messages
def export_without_a_development_set(folder: Path) -> None:
    path = bundle_beside(folder)
    (folder / "valid.de").unlink()
    ctranslate2.export_model(path, folder / "theirs")


@messages
def export_with_a_development_set_of_blank_lines(folder: Path) -> None:
    (folder / "blank").write_text(" \n\n")
    ctranslate2.export_model(bundle_beside(folder), folder / "theirs", source=folder / "blank")


@messages
def export_to_argos_with_another_ending(folder: Path) -> None:
    argos.export_model(bundle_beside(folder), folder / "de_en.zip")


@messages
def export_to_argos_over_another_file(folder: Path) -> None:
    (folder / "a.argosmodel").write_bytes(b"my notes")
    try:
        argos.export_model(bundle_beside(folder), folder / "a.argosmodel")
    finally:
        assert (folder / "a.argosmodel").read_bytes() == b"my notes"


@messages
def export_to_argos_with_a_splitter_that_is_none(folder: Path) -> None:
    argos.export_model(bundle_beside(folder), folder / "a.argosmodel", splitter=folder)


test_message, test_every_message_belongs_to_a_case = messages.tests()
