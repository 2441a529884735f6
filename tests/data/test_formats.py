"""Files of older versions are read and resumed: tests/formats/<version>, written by make.py there."""

import shutil
from pathlib import Path

import pytest

from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.storage.directories import FORMAT_VERSION
from seq2seq.training.trainer import train
from seq2seq.translation.translator import Translator

FORMATS = Path(__file__).parents[1] / "formats"


def test_each_released_format_is_stored():
    assert {path.name for path in FORMATS.iterdir() if path.is_dir()} >= {
        str(version) for version in range(1, FORMAT_VERSION + 1)}


@pytest.fixture(params=range(1, FORMAT_VERSION + 1))
def stored(request, tmp_path):
    return shutil.copytree(FORMATS / str(request.param), tmp_path / "stored")


def test_a_stored_bundle_translates_as_it_did(stored):
    translator = Translator.load(stored / "run", precision="fp32")
    found = [best for best, *_ in translator.translate((stored / "valid.en").read_text().splitlines())]
    kept = [line.split("\t") for line in (stored / "translations").read_text().splitlines()]
    assert [best.text for best in found] == [text for text, _ in kept]
    assert [best.log_probability for best in found] == pytest.approx([float(value) for _, value in kept], abs=1e-3)


def test_a_stored_run_is_gone_on_with(stored, capsys):
    done = newest_checkpoint(stored / "run").step
    train(load_recipe(stored / "recipe.yaml", [f"training.max_steps={done + 2}"]), stored / "run")
    assert f"resuming after step {done}" in capsys.readouterr().err
    assert newest_checkpoint(stored / "run").step == done + 2
