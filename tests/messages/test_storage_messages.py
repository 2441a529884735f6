"""Messages about checkpoints, bundles, runs and locks that cannot be read or written."""

import errno
import json
import os
from pathlib import Path

import torch
from catalogue import Catalogue

from seq2seq.data.corpus import read_pairs
from seq2seq.recipe import parse_recipe
from seq2seq.storage.atomic import cannot_save
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import (
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    recipe_with_text,
    resolve_model_path,
    save_best,
    save_bundle,
    save_checkpoint,
)
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


@catalogue
def a_model_of_transformers(folder):
    (folder / "model").mkdir()
    for name in ("config.json", "model.safetensors", "source.spm"):
        (folder / "model" / name).touch()
    resolve_model_path(folder / "model")


@catalogue
def an_average_of_a_model_of_another_program(folder):
    (folder / "model").mkdir()
    (folder / "model" / "model.bin").touch()
    average_checkpoints([folder / "model"], folder / "average")


@catalogue
def a_text_instead_of_a_model(folder):
    (folder / "test.de").write_text("ein Hund\n")
    resolve_model_path(folder / "test.de")


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
    path = save_best(folder / "run", "step-00000060", {}, RECIPE, {}, {})
    (path / "metadata.json").write_text("{")
    resolve_model_path(folder / "run")


@catalogue
def a_run_with_a_damaged_pointer(folder):
    (folder / "run").mkdir()
    (folder / "run" / "best").write_text("../other")
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
def the_text_of_a_bundle(folder):
    recipe_with_text(bundle(folder))


@catalogue
def a_corpus_of_a_bundle(folder):
    recipe = parse_recipe(RECIPE, folder / "recipe.yaml").for_bundle()
    next(read_pairs(recipe, recipe.data.train[0]))


@catalogue
def a_locked_run(folder):
    with lock_run(folder):
        (folder / ".holder").write_text("7 on host\n")
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
