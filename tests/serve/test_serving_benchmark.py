"""The benchmark of servers: its table, and its errors."""

import pytest
from served import serving

from benchmarks.serving import Load, Sentences, main


@pytest.mark.slow
def test_the_table_has_a_row_per_server_and_load(echo, capsys, tmp_path):
    (tmp_path / "text").write_text("ein Hund\n\nzwei Katzen\n")
    with serving() as (other, _, models):
        assert main([echo, other, "--text", str(tmp_path / "text"), "--clients", "1", "2", "--list-lengths", "3",
                     "--seconds", "0.05"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 4 and len({row.count("|") for row in rows}) == 1
    assert [row.split(" | ")[0] for row in rows[2:]] == [f"| {url}" for url in (echo, other)] * 2
    assert all(row.endswith("| 0 |") for row in rows[2:])
    texts = [sentence for _, sentences in models.batches for sentence in sentences]
    assert {"ein Hund", "zwei Katzen", "ein Katzen"} <= set(texts)


def test_a_missing_server_is_an_error(capsys):
    assert main(["http://127.0.0.1:9", "--seconds", "0.1"]) == 2
    assert "Start the server first" in capsys.readouterr().err


def test_latencies_are_percentiles():
    load = Load(2, [second / 1000 for second in range(1, 101)], failures=3, took=10.0)
    assert load.row() == ["10.0", "20.0", "51", "96", "100", "3"]
    assert Load(1).row() == ["-"] * 5 + ["0"]


def test_sentences_are_combined_from_halves_of_lines():
    sentences = Sentences(["a b", "c d", "e"])
    assert sentences.take(4) + sentences.take(2) == ["a b", "c d", "e", "a d", "c e", "b"]
