"""Interrupted saves leave earlier checkpoints readable, and damaged files are always detected."""

import errno
import itertools
import logging
import os
import resource
import signal

import pytest
import torch
from bits import assert_same_bits
from dying import die_at_operation, in_child, killed_at_operation

from seq2seq.errors import CheckpointError
from seq2seq.inference.load_model import as_tensors
from seq2seq.storage.checkpoints import (
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    recover_run,
    resolve_model_path,
    save_bundle,
    save_checkpoint,
    step_of,
    update_bundle_metadata,
    weights_checksum,
)

TENSORS = {
    "weight": torch.arange(15, dtype=torch.float32).reshape(3, 5).T,  # not contiguous
    "half": torch.tensor([1.5, -0.0, float("nan"), float("inf")], dtype=torch.bfloat16),
    "double": torch.tensor([1 / 3, 2e-300], dtype=torch.float64),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 3),
}
WEIGHTS = {
    "weight": TENSORS["weight"], "half": torch.tensor([1.5, -0.0, 2.0**-130], dtype=torch.bfloat16),
    "single": torch.tensor([1.5, 65504.0], dtype=torch.float16), "double": torch.tensor([1 / 3], dtype=torch.float64),
    "scalar": torch.tensor(7.5), "nothing": torch.empty(0, 3),
}
INFO = {
    "tokens": 2**63 + 11,
    "best": {"bleu": 1 / 3, "loss": float("-inf")},
    "name": "Übung 二",
    "none": None,
    "yes": True,
    "seen": [2, 3.0],
}
RECIPE = "name: übung\nlanguages: {source: de, target: en}\n"
TOKENIZER = {"tokenizer.model": bytes(range(256))}


def save(run, step, value=None):
    """Save a checkpoint in which every part contains its step or another given value."""
    value = float(step if value is None else value)
    tensors = {"weight": torch.full((2, 3), value)}
    return save_checkpoint(run, step, tensors, {"moment": torch.full((5,), value)}, {"value": value})


def value_of(loaded):
    """Check that all parts of the checkpoint contain the same value, and return it."""
    value = loaded.info["value"]
    assert torch.equal(loaded.model["weight"], torch.full((2, 3), value))
    assert torch.equal(loaded.state["moment"], torch.full((5,), value))
    return value


def save_best(run, value):
    weights = {"weight": torch.full((2, 3), float(value))}
    return save_bundle(run / "best", weights, f"{value}", {"tokenizer.model": b"%d" % value}, {"value": value})


def value_of_bundle(bundle):
    value = bundle.metadata["value"]
    assert bundle.weights["weight"].tolist() == [[value] * 3] * 2
    assert (bundle.recipe_text, bundle.tokenizer_files) == (f"{value}", {"tokenizer.model": b"%d" % value})
    return value


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def flip_bit(path, position):
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1 << position % 8
    path.write_bytes(contents)


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-2]),  # of JSON, the brace and the line end
    "emptied": lambda path: path.write_bytes(b""),
    "lengthened": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "flipped": lambda path: flip_bit(path, path.stat().st_size // 2),
    "missing": lambda path: path.unlink(),
}

# Checkpoints


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
    path = save_checkpoint(tmp_path / "run", 60, TENSORS, {"moment": torch.tensor([1e-45])}, INFO)

    loaded = load_checkpoint(path)

    assert path == tmp_path / "run" / "checkpoints" / "step-00000060"
    assert names_in(path) == ["metadata.json", "model.safetensors", "state.safetensors"]
    assert names_in(path.parent) == ["step-00000060"]
    assert (loaded.path, loaded.step, loaded.info) == (path, 60, INFO)
    assert_same_bits(loaded.model, TENSORS)
    assert_same_bits(loaded.state, {"moment": torch.tensor([1e-45])})


def test_a_checkpoint_may_have_no_state(tmp_path):
    assert load_checkpoint(save_checkpoint(tmp_path, 1, {"weight": torch.ones(2)}, {}, {})).state == {}


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path):
    path = save(tmp_path, 3)
    loaded = load_checkpoint(path)
    for file in path.iterdir():
        file.write_bytes(b"")
    assert value_of(loaded) == 3


def test_file_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        modes = {file.stat().st_mode & 0o777 for file in save(tmp_path, 1).iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o640}


def test_the_same_step_saved_again_replaces_the_first(tmp_path):
    save(tmp_path, 60, value=1)
    save(tmp_path, 60, value=2)
    assert value_of(newest_checkpoint(tmp_path)) == 2
    assert names_in(tmp_path / "checkpoints") == ["step-00000060"]


def test_checkpoints_are_listed_by_step_not_by_name(tmp_path):
    for step in (100_000_000, 2, 99_999_999):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "notes").mkdir()
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [2, 99_999_999, 100_000_000]


def test_a_run_without_checkpoints_has_no_newest(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert list_checkpoints(tmp_path / "nowhere") == []
    prune_checkpoints(tmp_path / "nowhere", keep=[])


@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "metadata.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, file, damage, caplog):
    save(tmp_path, 40)
    path = save(tmp_path, 60)
    DAMAGES[damage](path / file)

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    with caplog.at_level(logging.WARNING):
        found = newest_checkpoint(tmp_path)

    assert str(path / file) in str(caught.value)
    assert value_of(found) == 40
    assert str(path / file) in caplog.text and "step-00000040" in caplog.text


@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "metadata.json"])
def test_no_flipped_bit_passes(tmp_path, file):
    path = save(tmp_path, 60) / file
    for position in range(0, path.stat().st_size, 3):
        flip_bit(path, position)
        with pytest.raises(CheckpointError):
            load_checkpoint(path.parent)
        flip_bit(path, position)
    assert value_of(load_checkpoint(path.parent)) == 60


def test_when_all_are_damaged_training_does_not_silently_begin_anew(tmp_path):
    for step in (2, 3):
        (save(tmp_path, step) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        newest_checkpoint(tmp_path)


# Death and full disks while saving


def test_killed_at_any_moment_of_saving_the_newest_checkpoint_is_whole(tmp_path):
    save(tmp_path, 40)
    found = []
    while killed_at_operation(len(found) + 1, lambda: save(tmp_path, 60)):
        found.append(value_of(newest_checkpoint(tmp_path)))
        prune_checkpoints(tmp_path, keep=[40])
        recover_run(tmp_path)
        assert names_in(tmp_path / "checkpoints") == ["step-00000040"]
    assert {40, 60} == set(found) and found == sorted(found)
    assert value_of(newest_checkpoint(tmp_path)) == 60


def test_killed_at_any_moment_of_saving_a_step_again_one_of_both_is_whole(tmp_path):
    found = []
    while True:
        save(tmp_path, 60, value=1)
        if not killed_at_operation(len(found) + 1, lambda: save(tmp_path, 60, value=2)):
            break
        recover_run(tmp_path)
        found.append(value_of(newest_checkpoint(tmp_path)))
        assert names_in(tmp_path / "checkpoints") == ["step-00000060"]
    assert {1, 2} == set(found)
    assert value_of(newest_checkpoint(tmp_path)) == 2
    assert names_in(tmp_path / "checkpoints") == ["step-00000060"]


def test_killed_at_any_moment_of_replacing_a_bundle_one_of_both_is_whole(tmp_path):
    found = []
    while True:
        save_best(tmp_path, 1)
        if not killed_at_operation(len(found) + 1, lambda: save_best(tmp_path, 2)):
            break
        found.append(value_of_bundle(load_bundle(resolve_model_path(tmp_path))))
        recover_run(tmp_path)
        assert value_of_bundle(load_bundle(tmp_path / "best")) == found[-1] and names_in(tmp_path) == ["best"]
    assert {1, 2} == set(found)
    assert value_of_bundle(load_bundle(tmp_path / "best")) == 2
    assert names_in(tmp_path) == ["best"]


def test_killed_at_any_moment_of_pruning_no_half_deleted_checkpoint_shows(tmp_path, caplog):
    deaths = 0
    while True:
        save(tmp_path, 3)
        save(tmp_path, 5)
        if not killed_at_operation(deaths + 1, lambda: prune_checkpoints(tmp_path, keep=[3])):
            break
        deaths += 1
        for path in list_checkpoints(tmp_path):
            load_checkpoint(path)
        recover_run(tmp_path)
        assert {*names_in(tmp_path / "checkpoints")} <= {"step-00000003", "step-00000005"}
    assert deaths >= 2
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [3]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_an_error_at_any_moment_of_saving_leaves_the_old_and_no_litter(tmp_path, error):
    def fail():
        raise error

    expected = CheckpointError if isinstance(error, OSError) else KeyboardInterrupt
    failures = 0
    while True:
        save(tmp_path, 60, value=1)
        with pytest.MonkeyPatch.context() as patch:
            die_at_operation(failures + 1, patch, fail)
            try:
                save(tmp_path, 60, value=2)
                break
            except expected:
                failures += 1
        assert value_of(newest_checkpoint(tmp_path)) in (1, 2)
        assert names_in(tmp_path / "checkpoints") == ["step-00000060"]
    assert failures >= 10
    assert value_of(newest_checkpoint(tmp_path)) == 2


def test_files_are_flushed_before_they_are_renamed(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), events.append(os.fstat(descriptor).st_ino)))
    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), events.append("named")))
    path = save(tmp_path, 60)
    before, after = set(events[: events.index("named")]), set(events[events.index("named") :])
    assert {file.stat().st_ino for file in (path, *path.iterdir())} <= before
    assert path.parent.stat().st_ino in after


def test_a_write_that_fails_half_way_leaves_no_file(tmp_path):
    def save_beyond_the_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(CheckpointError):
            save_checkpoint(tmp_path, 60, {"weight": torch.ones(5000)}, {}, {})

    save(tmp_path, 40)
    assert in_child(save_beyond_the_limit) == 0
    assert names_in(tmp_path / "checkpoints") == ["step-00000040"]
    assert names_in(tmp_path / "checkpoints" / "step-00000040") == [
        "metadata.json",
        "model.safetensors",
        "state.safetensors",
    ]


# Bundles


def test_a_bundle_comes_back_to_the_bit(tmp_path):
    metadata = {"scores": {"test": {"bleu": {"value": 1 / 3}}}, "corpus": {"lines": 29_000}}
    directory = save_bundle(tmp_path / "best", WEIGHTS, RECIPE, TOKENIZER, metadata)

    bundle = load_bundle(directory)

    assert names_in(directory) == ["metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model"]
    assert bundle.directory == tmp_path / "best"
    assert (bundle.recipe_text, bundle.tokenizer_files, bundle.metadata) == (RECIPE, TOKENIZER, metadata)
    assert_same_bits(as_tensors(bundle.weights), {name: weight.float() for name, weight in WEIGHTS.items()})


def test_the_weights_of_a_bundle_do_not_depend_on_the_file(tmp_path):
    directory = save_bundle(tmp_path / "best", WEIGHTS, RECIPE, TOKENIZER, {})
    bundle = load_bundle(directory)
    os.truncate(directory / "model.safetensors", 0)
    assert bundle.weights["weight"].sum() == TENSORS["weight"].sum()


def test_a_bundle_can_be_moved(tmp_path):
    save_best(tmp_path, 3)
    (tmp_path / "best").rename(tmp_path / "elsewhere")
    assert value_of_bundle(load_bundle(tmp_path / "elsewhere")) == 3


def test_a_bundle_can_hold_two_tokenizers(tmp_path):
    files = {"source.model": b"\x02", "target.model": b"\x03", "vocabulary.json": b"{}"}
    assert load_bundle(save_bundle(tmp_path / "best", {}, RECIPE, files, {})).tokenizer_files == files


@pytest.mark.parametrize("file", ["model.safetensors", "recipe.yaml", "tokenizer.model"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_names_the_file(tmp_path, file, damage):
    directory = save_bundle(tmp_path / "best", TENSORS, RECIPE, TOKENIZER, {})
    DAMAGES[damage](directory / file)
    with pytest.raises(CheckpointError) as caught:
        load_bundle(directory)
    assert str(directory / file) in str(caught.value)
    assert ("missing" if damage == "missing" else "damaged") in str(caught.value)


def test_metadata_can_be_added_to_a_bundle(tmp_path):
    directory = save_best(tmp_path, 3)
    update_bundle_metadata(directory, scores={"test": 2.5})
    update_bundle_metadata(directory, note="gut")
    bundle = load_bundle(directory)
    assert bundle.metadata == {"value": 3, "scores": {"test": 2.5}, "note": "gut"}
    assert value_of_bundle(bundle) == 3
    assert names_in(directory) == ["metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model"]


def test_scores_of_weights_that_were_replaced_meanwhile_are_not_stored(tmp_path):
    directory = save_best(tmp_path, 3)
    checksum = weights_checksum(directory)
    save_best(tmp_path, 4)
    with pytest.raises(CheckpointError):
        update_bundle_metadata(directory, checksum, test={"bleu": 3})
    assert load_bundle(directory).metadata == {"value": 4}
    update_bundle_metadata(directory, weights_checksum(directory), test={"bleu": 4})
    assert load_bundle(directory).metadata == {"value": 4, "test": {"bleu": 4}}


def test_killed_at_any_moment_of_adding_metadata_the_bundle_is_whole(tmp_path):
    directory = save_best(tmp_path, 3)
    deaths = 0
    while killed_at_operation(deaths + 1, lambda: update_bundle_metadata(directory, note="neu")):
        deaths += 1
        assert value_of_bundle(load_bundle(directory)) == 3
    assert deaths >= 3
    assert load_bundle(directory).metadata["note"] == "neu"
    assert names_in(directory) == ["metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model"]


def test_metadata_that_cannot_be_written_leaves_the_old(tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = save_best(tmp_path, 3)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError):
        update_bundle_metadata(directory, note="neu")
    assert load_bundle(directory).metadata == {"value": 3}
    assert names_in(directory) == ["metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model"]


def test_files_that_a_user_added_to_a_bundle_survive_its_replacement(tmp_path):
    directory = save_best(tmp_path, 2)
    (directory / "README.md").write_text("mine")
    (directory / "plots").mkdir()
    (directory / "plots" / "loss.svg").write_text("also mine")
    save_best(tmp_path, 3)
    assert value_of_bundle(load_bundle(directory)) == 3
    assert (directory / "README.md").read_text() == "mine"
    assert (directory / "plots" / "loss.svg").read_text() == "also mine"


def test_a_directory_that_is_no_bundle_is_not_replaced(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(CheckpointError):
        save_best(tmp_path, 1)
    assert names_in(tmp_path / "best") == ["thesis.tex"]


def test_a_symbolic_link_to_a_bundle_stays_a_link(tmp_path):
    (tmp_path / "disk" / "best").mkdir(parents=True)
    (tmp_path / "best").symlink_to(tmp_path / "disk" / "best")
    save_best(tmp_path, 5)
    assert (tmp_path / "best").is_symlink()
    assert value_of_bundle(load_bundle(tmp_path / "disk" / "best")) == 5


def test_a_reader_never_sees_a_mixture_while_the_bundle_is_replaced(tmp_path):
    save_best(tmp_path, 0)
    writer = os.fork()
    if writer == 0:
        try:
            for value in itertools.count(1):
                save_best(tmp_path, value)
        finally:
            os._exit(99)
    try:
        seen = set()
        while len(seen) < 23:
            seen.add(value_of_bundle(load_bundle(resolve_model_path(tmp_path))))
            assert os.waitpid(writer, os.WNOHANG) == (0, 0)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert value_of_bundle(load_bundle(tmp_path / "best")) >= max(seen)


def test_a_model_is_a_bundle_or_a_run_that_has_one(tmp_path):
    best = save_best(tmp_path / "run", 2)
    assert resolve_model_path(best) == best
    assert resolve_model_path(tmp_path / "run") == best


@pytest.mark.parametrize("name", ["recipe.yaml", "source.model", "vocabulary.json", "README.md"])
def test_a_file_of_the_user_with_the_name_of_a_bundle_file_is_kept(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(CheckpointError):
        save_bundle(tmp_path / "mine", {"weight": torch.ones(2)}, "name: other\n", {}, {})
    assert (tmp_path / "mine" / name).read_text() == "mine"
