"""Interrupted saves leave earlier checkpoints readable, and damaged files are always detected."""

import errno
import itertools
import json
import logging
import os
import resource
import signal
import time

import pytest
import torch
from bits import assert_same_bits
from dying import die_at_operation, in_child, killed_at_operation

from seq2seq.errors import CheckpointError, OptionError
from seq2seq.inference.load_model import as_tensors
from seq2seq.storage import atomic
from seq2seq.storage.checkpoints import (
    append_scores,
    best_bundle,
    checkpoint_by_step,
    delete_leftovers,
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    resolve_model_path,
    run_of,
    save_best,
    save_bundle,
    save_checkpoint,
    step_of,
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


def save_as_best(run, value, name="step-00000060"):
    weights = {"weight": torch.full((2, 3), float(value))}
    return save_best(run, name, weights, f"{value}", {"tokenizer.model": b"%d" % value}, {"value": value})


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


def test_a_step_that_is_saved_again_is_another_checkpoint_and_the_newest(tmp_path):
    for value in range(1, 12):
        save(tmp_path, 60, value=value)
    save(tmp_path, 40)
    assert value_of(newest_checkpoint(tmp_path)) == 11
    assert [*map(step_of, list_checkpoints(tmp_path))] == [40, *[60] * 11]
    assert checkpoint_by_step(tmp_path)[60].name == "step-00000060-11"
    prune_checkpoints(tmp_path, keep=[40, 60])
    assert names_in(tmp_path / "checkpoints") == ["step-00000040", "step-00000060-11"]


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
        delete_leftovers(tmp_path)
        assert names_in(tmp_path / "checkpoints") == ["step-00000040"]
    assert {40, 60} == set(found) and found == sorted(found)
    assert value_of(newest_checkpoint(tmp_path)) == 60


def test_killed_at_any_moment_of_saving_a_step_again_the_newest_checkpoint_is_whole(tmp_path):
    save(tmp_path, 60, value=1)
    found = []
    while killed_at_operation(len(found) + 1, lambda: save(tmp_path, 60, value=2)):
        delete_leftovers(tmp_path)
        found.append(value_of(newest_checkpoint(tmp_path)))
        for path in list_checkpoints(tmp_path)[1:]:
            atomic.delete(path)
    assert {1, 2} == set(found)
    assert value_of(newest_checkpoint(tmp_path)) == 2


def test_killed_at_any_moment_of_saving_the_best_bundle_the_run_has_the_old_or_the_new_one(tmp_path):
    found, deaths = [], 0
    while True:
        save_as_best(tmp_path, 1)
        if not killed_at_operation(deaths + 1, lambda: save_as_best(tmp_path, 2)):
            break
        deaths += 1
        delete_leftovers(tmp_path)
        found.append(value_of_bundle(load_bundle(resolve_model_path(tmp_path))))
        assert all(load_bundle(path) for path in (tmp_path / "bundles").iterdir())
    assert {1, 2} == set(found) and found == sorted(found)
    assert value_of_bundle(load_bundle(best_bundle(tmp_path))) == 2
    assert names_in(tmp_path) == ["best", "bundles"] and len(names_in(tmp_path / "bundles")) == 2


def test_killed_at_any_moment_of_pruning_no_half_deleted_checkpoint_shows(tmp_path, caplog):
    deaths = 0
    while True:
        atomic.delete(tmp_path / "checkpoints")
        save(tmp_path, 3)
        save(tmp_path, 5)
        if not killed_at_operation(deaths + 1, lambda: prune_checkpoints(tmp_path, keep=[3])):
            break
        deaths += 1
        for path in list_checkpoints(tmp_path):
            load_checkpoint(path)
        delete_leftovers(tmp_path)
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
        assert all(name.startswith("step-") for name in names_in(tmp_path / "checkpoints"))
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
    directory = save_bundle(tmp_path / "mine", WEIGHTS, RECIPE, TOKENIZER, metadata)

    bundle = load_bundle(directory)

    assert names_in(directory) == ["metadata.json", "model.safetensors", "recipe.yaml", "tokenizer.model"]
    assert bundle.directory == tmp_path / "mine"
    assert (bundle.recipe_text, bundle.tokenizer_files, bundle.metadata) == (RECIPE, TOKENIZER, metadata)
    assert_same_bits(as_tensors(bundle.weights), {name: weight.float() for name, weight in WEIGHTS.items()})


def test_the_weights_of_a_bundle_do_not_depend_on_the_file(tmp_path):
    directory = save_bundle(tmp_path / "mine", WEIGHTS, RECIPE, TOKENIZER, {})
    bundle = load_bundle(directory)
    os.truncate(directory / "model.safetensors", 0)
    assert bundle.weights["weight"].sum() == TENSORS["weight"].sum()


def test_a_bundle_can_be_moved(tmp_path):
    save_as_best(tmp_path, 3).rename(tmp_path / "elsewhere")
    assert value_of_bundle(load_bundle(tmp_path / "elsewhere")) == 3


def test_a_bundle_can_hold_two_tokenizers(tmp_path):
    files = {"source.model": b"\x02", "target.model": b"\x03", "vocabulary.json": b"{}"}
    assert load_bundle(save_bundle(tmp_path / "mine", {}, RECIPE, files, {})).tokenizer_files == files


@pytest.mark.parametrize("file", ["model.safetensors", "recipe.yaml", "tokenizer.model"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_names_the_file(tmp_path, file, damage):
    directory = save_bundle(tmp_path / "mine", TENSORS, RECIPE, TOKENIZER, {})
    DAMAGES[damage](directory / file)
    with pytest.raises(CheckpointError) as caught:
        load_bundle(directory)
    assert str(directory / file) in str(caught.value)
    assert ("missing" if damage == "missing" else "damaged") in str(caught.value)


def test_scores_are_lines_beside_the_bundles_of_a_run_and_no_bundle_changes(tmp_path):
    directory = save_as_best(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    append_scores(directory, "test", {"small": {"bleu": 2.5}})                  # there is no recipe.yaml yet: no run
    assert run_of(directory) is None and not (tmp_path / "scores.jsonl").exists()
    (tmp_path / "recipe.yaml").touch()
    for score in (2.5, 3.5):
        append_scores(directory, "test", {"small": {"bleu": score}})
    records = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [(each["bundle"], each["kind"], each["scores"]["small"]["bleu"]) for each in records] == [
        ("step-00000060", "test", 2.5), ("step-00000060", "test", 3.5)]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("name", ["", "..", "../other", "a/b", "/etc", "step\0", "a" * 300, "no/such"])
def test_a_pointer_that_is_no_name_of_a_bundle_is_damage(tmp_path, name):
    save_as_best(tmp_path, 3)
    (tmp_path / "best").write_text(name)
    with pytest.raises(CheckpointError):
        resolve_model_path(tmp_path)


def test_a_pointer_to_a_bundle_that_is_gone_is_an_error_that_names_it(tmp_path):
    save_as_best(tmp_path, 3).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="bundles/step-00000060"):
        resolve_model_path(tmp_path)


def test_a_reader_never_sees_a_mixture_while_better_bundles_are_saved(tmp_path):
    save_as_best(tmp_path, 0)
    writer = os.fork()
    if writer == 0:
        try:
            for value in itertools.count(1):
                save_as_best(tmp_path, value)
                time.sleep(0.05)                        # two validations do not end while a model is read
        finally:
            os._exit(99)
    try:
        seen = set()
        while len(seen) < 11:
            seen.add(value_of_bundle(load_bundle(resolve_model_path(tmp_path))))
            assert os.waitpid(writer, os.WNOHANG) == (0, 0)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert value_of_bundle(load_bundle(best_bundle(tmp_path))) >= max(seen)


def test_a_model_is_a_bundle_or_a_run_that_has_one(tmp_path):
    best = save_as_best(tmp_path / "run", 2)
    assert resolve_model_path(best) == best
    assert resolve_model_path(tmp_path / "run") == best


@pytest.mark.parametrize("name", ["recipe.yaml", "source.model", "vocabulary.json", "README.md"])
def test_a_bundle_is_only_written_to_a_new_directory(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(OptionError):
        save_bundle(tmp_path / "mine", {"weight": torch.ones(2)}, "name: other\n", {}, {})
    assert (tmp_path / "mine" / name).read_text() == "mine" and names_in(tmp_path) == ["mine"]


def test_a_damaged_pointer_is_written_again_with_the_next_best_bundle(tmp_path):
    save_as_best(tmp_path, 2)
    (tmp_path / "best").write_text("../other")
    save_as_best(tmp_path, 3)
    assert value_of_bundle(load_bundle(resolve_model_path(tmp_path))) == 3


def test_a_step_that_is_saved_again_and_again_with_pruning_between_is_always_the_newest(tmp_path):
    for value in range(1, 8):
        save(tmp_path, 60, value=value)
        prune_checkpoints(tmp_path, keep=[60])
        assert value_of(newest_checkpoint(tmp_path)) == value


def test_bundles_that_a_user_keeps_in_a_run_are_not_deleted(tmp_path):
    save_bundle(tmp_path / "bundles" / "my-average", {"weight": torch.ones(2)}, "1", {}, {})
    for value in range(1, 5):
        save_as_best(tmp_path, value)
    assert "my-average" in names_in(tmp_path / "bundles") and len(names_in(tmp_path / "bundles")) == 3


def test_a_line_of_scores_that_was_cut_off_does_not_spoil_the_next(tmp_path):
    directory = save_as_best(tmp_path, 3)
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "scores.jsonl").write_text('{"bundle": "st')
    append_scores(directory, "test", {"kind": {"bleu": 2.5}})
    assert json.loads((tmp_path / "scores.jsonl").read_text().splitlines()[1])["kind"] == "test"
