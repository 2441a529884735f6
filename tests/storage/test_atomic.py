"""Atomic replacement of files."""

import pytest
from dying import killed_at_operation

from seq2seq.storage.atomic import replace_file


def test_a_file_has_its_old_contents_or_its_new_ones_wherever_the_process_is_killed(tmp_path):
    path, number = tmp_path / "recipe.yaml", 1
    while True:
        path.write_bytes(b"old")
        if not killed_at_operation(number, lambda: replace_file(path, b"new")):
            break
        assert path.read_bytes() == b"old"                                      # the name changes last
        number += 1
    assert path.read_bytes() == b"new" and number > 3
    replace_file(path, b"newer")                                                # whatever lies beside it
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("recipe.yaml", b"newer")]


def test_a_file_that_cannot_be_written_keeps_its_contents(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"old")
    (tmp_path / "recipe.yaml.writing").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
