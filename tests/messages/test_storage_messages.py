"""Messages about checkpoints, bundles, runs and locks that cannot be read or written."""

import errno
import io
import json
import os
import zipfile
from pathlib import Path

import torch
from catalogue import Catalogue

from seq2seq.data.corpus import require_readable
from seq2seq.interop.model_card import bundle_card
from seq2seq.recipe import Corpus, parse_recipe
from seq2seq.storage.atomic import cannot_save
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import (
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    resolve_model_path,
    save_bundle,
    save_checkpoint,
    update_bundle_metadata,
)
from seq2seq.storage.links import refuse_links
from seq2seq.storage.locks import lock_run
from seq2seq.storage.run_directory import compare_with_stored_recipe
from seq2seq.storage.tokenizer_files import save_tokenizers, tokenizers_of_run

RECIPE = "name: x\nlanguages: {source: de, target: en}\ndata: {train: [{source: a, target: b}], valid: {source: a, " \
         "target: b}}\n"
catalogue = Catalogue("storage")


def checkpoint(folder: Path, step: int = 60) -> Path:
    return save_checkpoint(folder / "run", step, {"weight": torch.ones(2)}, {}, {})


def bundle(folder: Path, name: str = "model") -> Path:
    return save_bundle(folder / name, {"weight": torch.ones(2)}, RECIPE, {"tokenizer.model": b"x"}, {})


def link(path: Path, target: str = "/etc/hostname") -> Path:
    path.unlink()
    path.symlink_to(target)
    return path


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"~~")


# Models of other programs


def model_files(name, files, function=resolve_model_path):
    """Add a case: a directory that contains these files, or one file of this name."""
    def case(folder):
        (folder / "model").mkdir()
        for file, contents in files.items():
            path = folder / "model" / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        function(folder / "model" / next(iter(files)) if len(files) == 1 and name.startswith("a file") else
                 folder / "model")

    catalogue.add(name, case)


def argos_package():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("de_en/metadata.json", "{}")
        archive.writestr("de_en/model/model.bin", "x")
    return data.getvalue()


EXPORTS = {
    "CTranslate2": {"model.bin": "x", "config.json": "{}", "shared_vocabulary.json": "[]", "parity.json": "{}"},
    "transformers": {"config.json": '{"model_type": "marian"}', "model.safetensors": "x", "source.spm": "x"},
    "another model of transformers": {"config.json": '{"model_type": "m2m_100"}', "model.safetensors": "x"},
    "Argos Translate": {"metadata.json": '{"from_code": "de", "to_code": "en"}', "model/model.bin": "x"},
    "Marian": {"model.npz": "x", "decoder.yml": "x"}, "ONNX": {"encoder.onnx": b"x"}, "PyTorch": {"model.pt": "x"},
    "the tokenizer of a run": {"metadata.json": '{"kind": "tokenizer"}'}}
for kind, files in EXPORTS.items():
    model_files(f"a directory of {kind}", files)
model_files("an average of CTranslate2", EXPORTS["CTranslate2"], lambda path: average_checkpoints([path], path / "out"))
for kind, files in {"Argos Translate": {"de_en.argosmodel": argos_package()}, "ONNX": {"model.onnx": b"\x08\0"},
                    "a tokenizer": {"source.spm": b"\0"}, "text": {"test.de": "ein Hund\n"},
                    "bytes": {"data": b"\0\x01"}}.items():
    model_files(f"a file of {kind}", files)


# Checkpoints


@catalogue
def a_checkpoint_with_a_missing_file(folder):
    path = checkpoint(folder)
    (path / "model.safetensors").unlink()
    load_checkpoint(path)


@catalogue
def a_checkpoint_whose_metadata_is_not_json(folder):
    path = checkpoint(folder)
    (path / "metadata.json").write_text("{")
    load_checkpoint(path)


@catalogue
def a_checkpoint_whose_metadata_has_changed(folder):
    path = checkpoint(folder)
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps(metadata | {"step": 61}))
    load_checkpoint(path)


@catalogue
def a_checkpoint_of_a_newer_version(folder):
    path = checkpoint(folder)
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps(metadata | {"format_version": 2}))
    newest_checkpoint(folder / "run")


@catalogue
def metadata_of_another_program(folder):
    path = checkpoint(folder)
    (path / "metadata.json").write_text("{}")
    load_checkpoint(path)


@catalogue
def no_checkpoint(folder):
    load_checkpoint(folder / "step-7")


@catalogue
def a_bundle_instead_of_a_checkpoint(folder):
    load_checkpoint(bundle(folder))


@catalogue
def a_run_whose_checkpoints_are_all_damaged(folder):
    for step in (2, 3):
        (checkpoint(folder, step) / "model.safetensors").unlink()
    newest_checkpoint(folder / "run")


@catalogue
def an_average_of_nothing(folder):
    average_checkpoints([folder], folder / "average")


@catalogue
def an_average_of_checkpoints_of_two_runs(folder):
    average_checkpoints([checkpoint(folder), checkpoint(folder / "other")], folder / "average")


# Bundles


@catalogue
def a_bundle_with_a_changed_file(folder):
    path = bundle(folder)
    flip(path / "recipe.yaml")
    load_bundle(path)


@catalogue
def a_bundle_with_a_link_out_of_it(folder):
    load_bundle(link(bundle(folder) / "recipe.yaml").parent)


@catalogue
def a_bundle_with_a_named_pipe(folder):
    path = bundle(folder)
    (path / "tokenizer.model").unlink()
    os.mkfifo(path / "tokenizer.model")
    load_bundle(path)


@catalogue
def a_bundle_over_other_files(folder):
    (folder / "model").mkdir()
    (folder / "model" / "thesis.tex").touch()
    bundle(folder)


@catalogue
def a_bundle_over_a_file(folder):
    (folder / "model").touch()
    bundle(folder)


@catalogue
def scores_of_other_weights(folder):
    update_bundle_metadata(bundle(folder), "of other weights", test={})


@catalogue
def metadata_that_no_card_can_show(folder):
    save_bundle(folder / "model", {"weight": torch.ones(2)}, RECIPE, {}, {"step": "last"}, bundle_card)


@catalogue
def a_model_that_does_not_exist(folder):
    resolve_model_path(folder / "nowhere")


@catalogue
def a_file_of_a_model(folder):
    resolve_model_path(bundle(folder) / "model.safetensors")


@catalogue
def another_file(folder):
    (folder / "a").touch()
    resolve_model_path(folder / "a")


@catalogue
def a_checkpoint_instead_of_a_model(folder):
    resolve_model_path(checkpoint(folder))


@catalogue
def a_run_without_a_model(folder):
    resolve_model_path(checkpoint(folder).parents[1])


@catalogue
def a_run_with_a_damaged_model(folder):
    (bundle(folder, "run/best") / "metadata.json").write_text("{")
    resolve_model_path(folder / "run")


@catalogue
def a_run_whose_model_is_a_link(folder):
    (folder / "run").mkdir()
    (folder / "run" / "best").symlink_to("/etc")
    resolve_model_path(folder / "run")


@catalogue
def a_directory_with_other_files(folder):
    for name in "abcdefg":
        (folder / name).touch()
    resolve_model_path(folder)


@catalogue
def an_empty_directory(folder):
    resolve_model_path(folder)


# Runs


@catalogue
def a_run_with_a_link_out_of_it(folder):
    link_in_run = folder / "metrics.jsonl"
    link_in_run.symlink_to("/etc/hostname")
    refuse_links(folder)


@catalogue
def a_lock_with_a_hard_link(folder):
    (folder / "file").touch()
    (folder / ".lock").hardlink_to(folder / "file")
    with lock_run(folder):
        pass


@catalogue
def text_that_is_not_that_of_the_model(folder):
    (folder / "other").touch()
    recipe = parse_recipe(RECIPE, bundle(folder) / "recipe.yaml", alone=True)
    require_readable(recipe, Corpus(source="../other", target="../other"))


@catalogue
def a_data_set_that_is_not_that_of_the_model(folder):
    (folder / "set").mkdir()
    (folder / "set" / "train.jsonl").write_text('{"x": "ein", "y": "a"}\n')
    recipe = parse_recipe(RECIPE, bundle(folder) / "recipe.yaml", alone=True)
    require_readable(recipe, Corpus(hub=str(folder / "set"), split="train", source="x", target="y"))


@catalogue
def a_locked_run(folder):
    with lock_run(folder):
        (folder / ".lock").write_text("7 on host\n")
        with lock_run(folder):
            pass


@catalogue
def a_file_instead_of_a_run(folder):
    (folder / "run").touch()
    with lock_run(folder / "run"):
        pass


@catalogue
def another_recipe(folder):
    checkpoint(folder)
    (folder / "run" / "recipe.yaml").write_text(RECIPE)
    compare_with_stored_recipe(parse_recipe(RECIPE + "seed: 2\n", folder / "recipe.yaml"), folder / "run")


@catalogue
def a_missing_recipe(folder):
    checkpoint(folder)
    compare_with_stored_recipe(parse_recipe(RECIPE, folder / "recipe.yaml"), folder / "run")


@catalogue
def a_damaged_recipe(folder):
    checkpoint(folder)
    (folder / "run" / "recipe.yaml").write_text("name: x")
    compare_with_stored_recipe(parse_recipe(RECIPE, folder / "recipe.yaml"), folder / "run")


@catalogue
def a_damaged_tokenizer(folder):
    save_tokenizers({"tokenizer.model": b"x"}, folder / "run" / "tokenizer")
    flip(folder / "run" / "tokenizer" / "tokenizer.model")
    tokenizers_of_run(folder / "run" / "tokenizer", lambda: None)


@catalogue
def a_missing_tokenizer(folder):
    checkpoint(folder)
    tokenizers_of_run(folder / "run" / "tokenizer", lambda: None)


for number, name in ((errno.ENOSPC, "a full disk"), (errno.EACCES, "no permission"), (errno.EROFS, "a read only disk"),
                     (errno.EBUSY, "a mount point"), (errno.EIO, "a broken disk")):
    catalogue.add(name, lambda folder, number=number: _without_size(
        cannot_save(folder / "run", OSError(number, os.strerror(number)))))


def _without_size(error):
    words = str(error).split(" ")
    return " ".join("N" if word.replace(",", "").replace(".", "").isdigit() else word for word in words)


test_message, test_every_message_belongs_to_a_case = catalogue.tests()
