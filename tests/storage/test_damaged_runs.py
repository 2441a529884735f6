"""A flipped bit in a run is detected or has no effect: training never continues from damaged files."""

import random
import shutil
import zlib

import pytest
from toy import RECIPE, write_corpus
from trainings import die, final_weights, interrupting, same

from seq2seq.cli import main
from seq2seq.recipe import load_recipe
from seq2seq.storage import directories
from seq2seq.storage.averaging import average_checkpoints
from seq2seq.storage.checkpoints import best_bundle, load_bundle, newest_checkpoint
from seq2seq.storage.directories import DamagedError
from seq2seq.storage.tokenizer_files import load_tokenizers, save_tokenizers
from seq2seq.training.run import train

pytestmark = pytest.mark.usefixtures("quick_tensorboard")

SAMPLED = "tokenizer.subword_sampling=0.2"
KINDS = {"prepared", "tokenizer", "metrics.jsonl", "recipe.yaml", "checkpoints", "best", "bundles", "curves.svg"}


def flip(path, place, bit=0):
    contents = bytearray(path.read_bytes())
    contents[place] ^= 1 << bit
    path.write_bytes(contents)


def files_of(run):
    """Return all files of a run except its lock."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in (".lock", ".holder"))
    assert {path.relative_to(run).parts[0] for path in files} - {"scores.jsonl"} == KINDS
    return files


def arguments(folder, run, *settings):
    return ["train", str(folder / "recipe.yaml"), "--run-dir", str(run), *(f"--set={each}" for each in settings)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Text, and for each recipe an interrupted run and the final weights of an uninterrupted one."""
    folder = tmp_path_factory.mktemp("damaged")
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        final = {}
        for name, settings in (("plain", ()), ("sampled", (SAMPLED,))):
            recipe = load_recipe(folder / "recipe.yaml", settings)
            interrupting(patch, 8, die)
            with pytest.raises(MemoryError):
                train(recipe, folder / name)
            shutil.copytree(folder / name, folder / f"{name}-end")
            train(recipe, folder / f"{name}-end")
            final[name] = final_weights(folder / f"{name}-end")
    return folder, final


@pytest.fixture
def interrupted(made, tmp_path, monkeypatch):
    """Function that copies an interrupted run."""
    folder, _ = made

    def copy(name="plain", finished=False):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return shutil.copytree(folder / (f"{name}-end" if finished else name), tmp_path / "run")

    return copy


def flips(run, draw, count):
    """Yield random positions of bits to flip, the same number in each file: (path in the run, byte, bit)."""
    files = files_of(run)
    assert count >= len(files)
    for number in range(count):
        path = files[number % len(files)]
        yield path.relative_to(run), draw.randrange(path.stat().st_size), draw.randrange(8)


@pytest.mark.slow
@pytest.mark.parametrize("name, finished, count", [("plain", False, 120), ("sampled", False, 60), ("plain", True, 40)])
def test_a_flipped_bit_is_noticed_or_changes_nothing(made, interrupted, capfd, name, finished, count):
    folder, final = made
    settings = (SAMPLED,) if name == "sampled" else ()
    silent = []
    draw = random.Random(count)
    for path, place, bit in list(flips(interrupted(name, finished), draw, count)):
        run = interrupted(name, finished)
        flip(run / path, place, bit)
        code = main(arguments(folder, run, *settings))
        told = capfd.readouterr().err
        assert code in (0, 2), (path, place, bit, told)
        if code == 0 and not (same(final_weights(run), final[name]) and load_tokenizers(run / "tokenizer")
                              and load_bundle(best_bundle(run))):
            silent.append((path, place, bit, told))
        if code == 2:
            assert path.name in told or path.parts[0] in told, (path, place, bit, told)
    assert not silent


# What is read to train on


@pytest.mark.parametrize("name", ["source.ids", "corpus.json", *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("source.offsets", "target.ids", "target.offsets", "lines", "corpora"))])
def test_damaged_prepared_text_is_named_and_prepared_again(made, interrupted, capfd, name):
    folder, final = made
    run = interrupted()
    (path,) = run.glob(f"prepared/*/{name}")
    before = path.read_bytes()
    flip(path, len(before) // 2)
    assert main(arguments(folder, run)) == 0
    told = capfd.readouterr().err
    assert name in told and "The text is prepared again" in told
    assert path.read_bytes() == before
    assert same(final_weights(run), final["plain"])


@pytest.mark.parametrize("name", ["source.txt", pytest.param("target.txt", marks=pytest.mark.slow)])
def test_damaged_text_of_subword_sampling_is_prepared_again(made, interrupted, capfd, name):
    folder, final = made
    run = interrupted("sampled")
    (path,) = run.glob(f"prepared/*/{name}")
    flip(path, path.stat().st_size // 2)
    assert main(arguments(folder, run, SAMPLED)) == 0
    assert f"{name} is damaged" in capfd.readouterr().err
    assert same(final_weights(run), final["sampled"])


# The tokenizer


def damage_tokenizer(run):
    path = run / "tokenizer" / "tokenizer.model"
    before = path.read_bytes()
    flip(path, before.index("▁".encode()) + 1)
    return path, before


def test_a_damaged_tokenizer_stops_the_run_and_is_restored_from_the_best_model(made, interrupted, capfd):
    folder, final = made
    run = interrupted()
    path, before = damage_tokenizer(run)
    assert main(arguments(folder, run)) == 2
    assert str(path) in (told := capfd.readouterr().err) and str(run / "bundles") in told
    shutil.copy(best_bundle(run) / "tokenizer.model", path)
    assert path.read_bytes() == before
    assert main(arguments(folder, run)) == 0
    assert same(final_weights(run), final["plain"])


def test_a_missing_tokenizer_stops_the_run(made, interrupted, capfd):
    folder, _ = made
    run = interrupted()
    shutil.rmtree(run / "tokenizer")
    assert main(arguments(folder, run)) == 2
    assert str(run / "tokenizer") in capfd.readouterr().err and not (run / "tokenizer").exists()


def test_another_tokenizer_with_true_checksums_is_not_that_of_the_checkpoints(made, interrupted, capfd):
    folder, _ = made
    run = interrupted()
    path, _ = damage_tokenizer(run)
    save_tokenizers({path.name: path.read_bytes()}, run / "tokenizer")
    assert main(arguments(folder, run)) == 2
    assert "trained with another tokenizer" in capfd.readouterr().err


def test_a_damaged_tokenizer_is_not_saved_in_a_bundle(interrupted, tmp_path):
    run = interrupted()
    damage_tokenizer(run)
    with pytest.raises(DamagedError):
        average_checkpoints([run], tmp_path / "average")
    assert not (tmp_path / "average").exists()


# The rest


def test_a_damaged_log_causes_a_warning_and_training_continues(made, interrupted, capfd):
    folder, final = made
    run = interrupted()
    path = run / "metrics.jsonl"
    flip(path, 0)
    assert main(arguments(folder, run)) == 0
    assert f"{path} is damaged" in capfd.readouterr().err
    assert same(final_weights(run), final["plain"])


@pytest.mark.parametrize("place", [b"d_model: 16", b"languages:"], ids=["another recipe", "no recipe"])
def test_a_damaged_recipe_stops_the_run(made, interrupted, capfd, place):
    folder, _ = made
    run = interrupted()
    path = run / "recipe.yaml"
    flip(path, path.read_bytes().index(place) + 9)
    before = path.read_bytes()
    assert main(arguments(folder, run)) == 2
    assert str(run) in capfd.readouterr().err
    assert path.read_bytes() == before


def test_damaged_metadata_of_the_best_model_are_noticed(interrupted):
    run = interrupted()
    path = best_bundle(run) / "metadata.json"
    flip(path, path.read_bytes().index(b'"step": ') + 8)
    with pytest.raises(DamagedError):
        load_bundle(path.parent)


def test_a_checksum_is_that_of_zlib(tmp_path):
    contents = random.Random(1).randbytes(2 * directories.BLOCK_BYTES + 7)
    (tmp_path / "file").write_bytes(contents)
    assert directories.crc32_of(tmp_path / "file") == zlib.crc32(contents)
    assert newest_checkpoint(tmp_path) is None
