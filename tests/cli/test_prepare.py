"""`seq2seq prepare`: a training that follows reads no training text, and is the same."""

import pytest
from toy import RECIPE, write_corpus
from trainings import final_weights, same

from seq2seq.cli import main
from seq2seq.data import corpus

pytestmark = pytest.mark.usefixtures("quick_tensorboard")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["tokenizer.subword_sampling=0.1", "training.guided_alignment=0.1"])
def test_a_training_after_prepare_reads_no_training_text_and_has_the_same_weights(
        tmp_path, monkeypatch, capsys, setting):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [str(tmp_path / "recipe.yaml"), "--set", setting, "--threads", "1"]
    assert main(["train", *command, "--run-dir", str(tmp_path / "alone")]) == 0
    assert main(["prepare", *command, "--run-dir", str(tmp_path / "run")]) == 0
    assert "pairs are prepared" in capsys.readouterr().err
    read = corpus.read_lines

    def read_other(path, *arguments):
        assert not path.name.startswith("train.")
        return read(path, *arguments)

    monkeypatch.setattr(corpus, "read_lines", read_other)
    assert main(["train", *command, "--run-dir", str(tmp_path / "run")]) == 0
    assert same(final_weights(tmp_path / "run"), final_weights(tmp_path / "alone"))


def test_a_preparation_that_is_repeated_changes_nothing(tmp_path):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = ["prepare", str(tmp_path / "recipe.yaml"), "--run-dir", str(tmp_path / "run")]
    assert main(command) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run" / "prepared").rglob("*") if path.is_file()}
    assert main(command) == 0
    assert before == {path: path.read_bytes() for path in before} and before
