"""Parallel text in all formats: only a line feed ends a line, and errors name the line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, strategies

from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts, as_lines, first_line_warnings, read_corpus, read_lines, read_pairs
from seq2seq.errors import CorpusError, RecipeError
from seq2seq.files import BLOCK_BYTES
from seq2seq.recipe import Corpus, Recipe, load_recipe
from seq2seq.recipe.data_section import Cleaning
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.source import Source
from seq2seq.translation.text_io import reading

FIRST_PAIRS = [(1, "ein Hund", "a dog"), (2, "eine Katze", "a cat")]


def write(path: Path, text: str | bytes) -> Path:
    data = text if isinstance(text, bytes) else text.encode()
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def pairs_of(directory: Path, counts: Counts | None = None, **spec) -> list[tuple[int, str, str]]:
    return [(number, source.text, target) for number, source, target in read_corpus(Corpus(**spec), directory, counts)]


# Lines


@pytest.mark.parametrize("text, lines", [
    ("", []),
    ("a", ["a"]),
    ("a\n", ["a"]),
    ("a\nb", ["a", "b"]),
    ("a\n\n", ["a", ""]),
    ("\n", [""]),
    ("\n\na", ["", "", "a"]),
    ("a\r\nb\r", ["a\r", "b\r"]),
    ("a\rb\n", ["a\rb"]),
    ("a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei\nj", ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei", "j"]),
    ("a\x00b\n", ["a\x00b"]),
    ("\ufeffa\n", ["\ufeffa"]),
    (" a \t\n", [" a \t"]),
], ids=ascii)
@pytest.mark.parametrize("name", ["text", "text.gz", "text.zst"])
def test_a_line_feed_alone_ends_a_line(tmp_path, name, text, lines):
    assert list(read_lines(write(tmp_path / name, text))) == lines


@pytest.mark.parametrize("name", ["text", "text.gz", "text.zst"])
def test_lines_may_be_longer_than_what_is_read_at_once(tmp_path, name):
    """Lengths with a line feed right before, at and after the end of a block, and lines of several blocks."""
    lines = ["ä" * (BLOCK_BYTES // 2), "x" * (BLOCK_BYTES - 3), "", "y" * (3 * BLOCK_BYTES + 5), "z"]
    assert list(read_lines(write(tmp_path / name, "\n".join(lines)), 4 * BLOCK_BYTES)) == lines


def test_a_file_is_not_read_before_it_is_needed(tmp_path):
    lines = read_lines(write(tmp_path / "text", b"a\n\xff\n"))
    assert next(lines) == "a"
    with pytest.raises(CorpusError):
        next(lines)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("read", [lambda path: list(read_lines(path)), lambda path: translation_input(path)],
                         ids=["corpus", "translation"])
def test_a_compressed_file_without_the_right_ending_is_refused(tmp_path, pack, read):
    with pytest.raises(CorpusError):
        read(write(tmp_path / "text.de", pack(b"ein Hund\n" * 100)))


def test_text_that_resembles_a_compressed_file_is_read(tmp_path):
    assert list(read_lines(write(tmp_path / "text", "BZh9\nPK\n"))) == ["BZh9", "PK"]


def translation_input(path):
    with reading(path) as lines:
        return list(lines)




@pytest.mark.parametrize("text", ["ab\nabcdefg\n", "ab\nabcdefg", "ab\nabcdef\r\n"])
def test_a_line_may_be_as_long_as_allowed_and_no_longer(tmp_path, text):
    path = write(tmp_path / "text", text)
    assert list(read_lines(path, 7)) == text.removesuffix("\n").split("\n")
    with pytest.raises(CorpusError, match="text:2:"):
        list(read_lines(path, 6))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_a_compression_bomb_does_not_fill_the_memory(tmp_path, pack):
    path = tmp_path / f"bomb.{'gz' if pack is gzip.compress else 'zst'}"
    path.write_bytes(pack(b"one\n" + b"x" * 50_000_000))
    tracemalloc.start()
    with pytest.raises(CorpusError, match=r"bomb\.\w+:2:"):
        list(read_lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000


@pytest.mark.parametrize("corpus", [
    {"source": "text", "target": "text"}, {"file": "pairs.tsv"}, {"file": "pairs.jsonl", "source": "a", "target": "b"},
    {"file": "pairs.tmx", "source": "de", "target": "en"}], ids=lambda corpus: corpus.get("file", "files"))
def test_a_corpus_says_how_long_its_lines_may_be(tmp_path, corpus):
    long = "x" * 1_000_001
    write(tmp_path / "text", long)
    write(tmp_path / "pairs.tsv", f"{long}\t{long}")
    write(tmp_path / "pairs.jsonl", json.dumps({"a": long, "b": long}))
    write(tmp_path / "pairs.tmx", "<tmx><body><tu>" + "".join(
        f'<tuv xml:lang="{code}"><seg>{long}</seg></tuv>' for code in ("de", "en")) + "</tu></body></tmx>")
    with pytest.raises(CorpusError, match=":1:"):
        list(read_corpus(Corpus(**corpus), tmp_path))
    assert list(as_lines(read_corpus(Corpus(**corpus, max_line_bytes=3_000_000), tmp_path))) == [(1, long, long)]


WHOLE = "".join(f"Zeile {number * number}\n" for number in range(3000)).encode()


@pytest.mark.parametrize("name, data", [
    ("a.zst", zstandard.compress(WHOLE)[:-7]), ("a.zst", b"text"), ("a.zst", zstandard.compress(WHOLE)[:20] + b"!!!"),
    ("a.gz", gzip.compress(WHOLE)[:-300]), ("a.gz", gzip.compress(WHOLE)[:-5]), ("a.gz", b"no gzip at all"),
    ("a.gz", gzip.compress(WHOLE)[:-8] + bytes(8)), ("a.gz", gzip.compress(WHOLE) + b"rubbish")])
def test_a_compressed_file_that_is_not_intact_is_an_error(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=f"{name} is not an intact"):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("name, pack", [("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_the_parts_of_a_compressed_file_are_one_text(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"a\nb") + pack(b"c\nd\n"))
    assert list(read_lines(tmp_path / name)) == ["a", "bc", "d"]


# Two files


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_two_files_are_read_line_by_line(tmp_path, ending):
    write(tmp_path / f"a.de{ending}", "ein Hund\neine Katze\n")
    write(tmp_path / "a.en", "a dog\na cat")
    counts = Counts()
    assert pairs_of(tmp_path, counts, source=f"a.de{ending}", target="a.en") == FIRST_PAIRS
    assert (counts.lines, counts.kept, counts.dropped) == (2, 2, {})


def test_paths_are_relative_to_the_directory_or_absolute(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.de", "x")
    write(tmp_path / "a.en", "y")
    assert pairs_of(tmp_path, source="deep/a.de", target="a.en") == [(1, "x", "y")]
    assert pairs_of(Path("/nowhere"), source=str(tmp_path / "deep/a.de"), target=str(tmp_path / "a.en")) == [
        (1, "x", "y")]


def test_carriage_returns_are_removed_and_counted(tmp_path):
    write(tmp_path / "a.de", "ein\rHund\r\neine Katze\r\r\nHaus")
    write(tmp_path / "a.en", "a dog\r\na cat\nhouse\r\n")
    counts = Counts()
    assert pairs_of(tmp_path, counts, source="a.de", target="a.en") == [
        (1, "ein\rHund", "a dog"), (2, "eine Katze\r", "a cat"), (3, "Haus", "house")]
    assert counts.carriage_returns == 4


def test_a_byte_order_mark_is_removed_and_counted(tmp_path):
    write(tmp_path / "a.de", "\ufeffein Hund\n\ufeffeine Katze\n")
    write(tmp_path / "a.en", "\ufeffa dog\na cat\n")
    counts = Counts()
    assert pairs_of(tmp_path, counts, source="a.de", target="a.en") == [
        (1, "ein Hund", "a dog"), (2, "\ufeffeine Katze", "a cat")]
    assert counts.byte_order_marks == 2


def test_the_limit_is_the_first_pairs_and_no_more_is_read(tmp_path):
    write(tmp_path / "a.de", b"ein Hund\neine Katze\n\xff\n")
    write(tmp_path / "a.en", "a dog\na cat\n")
    counts = Counts()
    assert pairs_of(tmp_path, counts, source="a.de", target="a.en", limit=2) == FIRST_PAIRS
    assert counts.lines == 2


@pytest.mark.parametrize("german, english", [(7, 5), (5, 7), (3, 0), (0, 3), (0, 0)])
def test_files_of_different_length_are_an_error_but_for_a_limit(tmp_path, german, english):
    write(tmp_path / "a.de", "x\n" * german)
    write(tmp_path / "a.en", "x\n" * english)
    if german != english:
        with pytest.raises(CorpusError):
            pairs_of(tmp_path, source="a.de", target="a.en")
    if limit := min(german, english):
        assert len(pairs_of(tmp_path, source="a.de", target="a.en", limit=limit)) == limit


# TSV


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv_columns_count_from_one(tmp_path, name):
    write(tmp_path / name, "7\tein Hund\ta dog\teuroparl\n7\teine Katze\ta cat\n")
    assert pairs_of(tmp_path, file=name, source=2, target=3) == FIRST_PAIRS
    assert pairs_of(tmp_path, file=name, source=3, target=2)[0] == (1, "a dog", "ein Hund")
    assert pairs_of(tmp_path, file=name)[0] == (1, "7", "ein Hund")


def test_tsv_columns_may_have_names(tmp_path):
    write(tmp_path / "a.tsv", "\ufeffen\tid\tde\r\na dog\t7\tein Hund\r\na cat\t8\teine Katze\r\n")
    counts = Counts()
    found = pairs_of(tmp_path, counts, file="a.tsv", header=True, source="de", target="en")
    assert found == [(2, "ein Hund", "a dog"), (3, "eine Katze", "a cat")]
    assert (counts.lines, counts.carriage_returns) == (2, 2)


def test_quotes_in_a_tsv_file_are_text(tmp_path):
    write(tmp_path / "a.tsv", '"Hund\t"dog" he said\n')
    assert pairs_of(tmp_path, file="a.tsv") == [(1, '"Hund', '"dog" he said')]


@pytest.mark.parametrize("name, line", [("a.tsv", "7\ta dog\tein Hund"), ("a.csv", '7,"a, dog",ein Hund'),
                                        ("a.tsv.gz", "7\ta dog\tein Hund\r")])
def test_more_than_two_columns_are_warned_of_without_a_choice(tmp_path, name, line):
    def warnings(line: str, columns: str = "") -> int:
        write(tmp_path / name, f"{line}\n")
        (tmp_path / "recipe.yaml").write_text("name: x\nlanguages: {source: en, target: de}\ndata: {train: [{file: "
                                              f"{name}{columns}}}], valid: {{file: {name}, source: 1, target: 2}}}}\n")
        return len(list(first_line_warnings(load_recipe(tmp_path / "recipe.yaml"))))

    assert warnings(line) == 1
    assert warnings(line, ", source: 1, target: 2") == 0
    assert warnings(line.partition("," if "csv" in name else "\t")[2]) == 0
    assert warnings("") == 0


@pytest.mark.parametrize("header", ["source,target", "English,German", "de,en", "eng_Latn,deu_Latn",
                                    "Translation,Source", "Krio,German", "German,Krio"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_header_that_would_be_read_as_a_pair_is_warned_of(tmp_path, name, header):
    def recipe_of(line: str, columns: str = "") -> Recipe:
        write(tmp_path / name, f"\ufeff{line}\r\na dog,ein Hund\r\n".replace(",", "," if "csv" in name else "\t"))
        (tmp_path / "recipe.yaml").write_text(
            f"name: x\nlanguages: {{source: en, target: de}}\ndata: {{train: [{{file: {name}{columns}}}], "
            f"valid: {{file: {name}, source: 1, target: 2}}}}\n")
        return load_recipe(tmp_path / "recipe.yaml")

    (warning,) = first_line_warnings(recipe_of(header))
    for line, columns in (("a dog,ein Hund", ""), ("Krio,Wolof", ""), (header, ", source: 1, target: 2")):
        assert not list(first_line_warnings(recipe_of(line, columns)))
    recipe = recipe_of(header, f", {warning.remedy.split('`')[1]}")
    assert not list(first_line_warnings(recipe))
    (pair,) = as_lines(read_pairs(recipe, recipe.data.train[0]))
    assert pair == ((2, "ein Hund", "a dog") if header.startswith(("de", "Tr", "Ge")) else (2, "a dog", "ein Hund"))


# CSV


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_csv_columns_are_those_of_tsv(tmp_path, name):
    write(tmp_path / name, "7,ein Hund,a dog\n7,eine Katze,a cat\n")
    assert pairs_of(tmp_path, file=name, source=2, target=3) == FIRST_PAIRS
    assert pairs_of(tmp_path, file=name)[0] == (1, "7", "ein Hund")
    assert pairs_of(tmp_path, file=name, text=3, limit=1) == [(1, "", "a dog")]


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_csv_columns_may_have_names_and_marks_around_them_are_repaired(tmp_path, quote, ending):
    rows = [["en", "id", "de"], ["a dog", "7", "ein Hund"], ["a cat", "8", "eine Katze"]]
    text = "".join(",".join(f"{quote}{field}{quote}" for field in row) + ending for row in rows)
    write(tmp_path / "a.csv", "\ufeff" + text)
    counts = Counts()
    found = pairs_of(tmp_path, counts, file="a.csv", header=True, source="de", target="en")
    assert found == [(2, "ein Hund", "a dog"), (3, "eine Katze", "a cat")]
    assert counts.carriage_returns == (2 if ending == "\r\n" else 0)
    assert pairs_of(tmp_path, counts, file="a.csv", source=1, target=3)[0] == (1, "en", "de")
    assert counts.byte_order_marks == 1


@pytest.mark.parametrize("line, fields", [
    ('"a, b","c"', ("a, b", "c")), ('"he said ""yes""",c', ('he said "yes"', "c")), ('"""a""","""', None),
    ('"""a""",""""', ('"a"', '"')), ('"",', ("", "")), (',""', ("", "")), (" a , b ", (" a ", " b ")),
    ('"a\tb",c\td', ("a\tb", "c\td")), ('"a\rb",c', ("a\rb", "c")), ("a\rb,c", ("a\rb", "c")),
])
def test_fields_of_a_csv_file_are_quoted_as_rfc_4180_says(tmp_path, line, fields):
    write(tmp_path / "a.csv", f"{line}\n")
    if fields is None:
        with pytest.raises(CorpusError, match="a.csv:1:"):
            pairs_of(tmp_path, file="a.csv")
    else:
        assert pairs_of(tmp_path, file="a.csv") == [(1, *fields)]


FIELDS = strategies.text(strategies.characters(exclude_characters="\n", exclude_categories=("Cs",))).filter(
    lambda text: not text.endswith("\r") and not text.startswith("\ufeff"))


@given(rows=strategies.lists(strategies.tuples(FIELDS, FIELDS), min_size=1, max_size=5), ending=strategies.sampled_from(
    ["\n", "\r\n"]), quoting=strategies.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
def test_output_of_the_python_csv_module_is_read_unchanged(tmp_path_factory, rows, ending, quoting):
    """Files written by another implementation, Python's csv module, are read back unchanged."""
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=ending, quoting=quoting).writerows(rows)
    folder = tmp_path_factory.mktemp("csv")
    write(folder / "a.csv", written.getvalue())
    assert pairs_of(folder, file="a.csv") == [(number, *row) for number, row in enumerate(rows, 1)]


@pytest.mark.parametrize("line", ['"ein', '"ein Hund","a', '"ein" Hund,a dog', 'ein Hund,a "dog"', 'ein Hund, "a dog"',
                                  "ein Hund,yes, a dog", "ein Hund"])
def test_mistakes_in_csv_are_named_by_line(tmp_path, line):
    write(tmp_path / "a.csv", f'"x","y, z"\n{line}\nx,y\n')
    with pytest.raises(CorpusError, match="a.csv:2:"):
        pairs_of(tmp_path, file="a.csv")


# JSONL

KEYS = {"source": "de", "target": "en"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_jsonl_has_a_pair_in_each_line(tmp_path, name):
    records = [{"de": "ein Hund", "en": "a dog", "id": 7}, {"translation": {"en": "a cat", "de": "eine Katze"}}]
    write(tmp_path / name, "\r\n".join(json.dumps(record) for record in records))
    assert pairs_of(tmp_path, file=name, **KEYS) == FIRST_PAIRS


def test_line_ends_inside_a_field_become_spaces_and_are_counted(tmp_path):
    record = {"de": "ein\nHund\r\nbellt\u2028laut", "en": "a dog\n"}
    write(tmp_path / "a.jsonl", json.dumps(record))
    counts = Counts()
    assert pairs_of(tmp_path, counts, file="a.jsonl", **KEYS) == [(1, "ein Hund bellt\u2028laut", "a dog ")]
    assert counts.inner_newlines == 3


@pytest.mark.parametrize("line", ['{"de": "x"', "[" * 100_000, '["x", "y"]', "null", '{"de": "x", "fr": "y"}',
                                  '{"translation": {"de": "x", "fr": "y"}}', '{"translation": "x"}',
                                  '{"translation": []}', '{"translation": {"de": 1, "en": "y"}}', "{}",
                                  '{"de": "x", "en": 7}', '{"de": ["x"], "en": "y"}',
                                  r'{"de": "x", "en": "y \ud83d"}'], ids=lambda line: line[:30])
def test_mistakes_in_jsonl_are_named_by_line(tmp_path, line):
    write(tmp_path / "a.jsonl", f'{json.dumps({"de": "x", "en": "y"})}\n{line}\n')
    with pytest.raises(CorpusError, match="a.jsonl:2:"):
        pairs_of(tmp_path, file="a.jsonl", **KEYS)


def test_null_is_an_empty_text_and_both_halves_of_a_pair_are_a_character(tmp_path):
    write(tmp_path / "a.jsonl", r'{"de": null, "en": "\ud83d\ude00"}')
    assert pairs_of(tmp_path, file="a.jsonl", **KEYS) == [(1, "", "\U0001f600")]


@pytest.mark.parametrize("record", [{"translation": None}, {"translation": {"de": None, "en": None}},
                                    {"de": None, "en": None}])
def test_a_record_without_text_is_a_blank_line(tmp_path, record):
    write(tmp_path / "a.jsonl", "".join(json.dumps(one) + "\n" for one in (TRANSLATIONS[0], record, TRANSLATIONS[1])))
    assert pairs_of(tmp_path, file="a.jsonl", **KEYS) == [FIRST_PAIRS[0], (2, "", ""), (3, "eine Katze", "a cat")]
    counts = Counts()
    spec = Corpus(file="a.jsonl", **KEYS)
    assert [number for number, *_ in clean(read_corpus(spec, tmp_path, counts), Cleaning(), counts)] == [1, 3]
    assert (counts.dropped, counts.examples) == ({"empty": 1}, {"empty": 2})


TABLES = {"a.tsv": "1\tein Hund\ta dog\n{blank}\n\n2\teine Katze\ta cat\n\n",
          "a.csv": '"1",ein Hund,a dog\n{blank}\n\n2,eine Katze,a cat\n\n',
          "a.jsonl": '{{"1": "1", "2": "ein Hund", "3": "a dog"}}\n{blank}\n\n'
                     '{{"1": "2", "2": "eine Katze", "3": "a cat"}}\n\n'}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("blank", ["", "\r", " ", "\u3000", "\u200b \xad"])
def test_a_blank_line_of_a_table_is_an_empty_pair_and_ends_a_document(tmp_path, name, blank):
    write(tmp_path / name, TABLES[name].format(blank=blank))
    columns = {"source": "2", "target": "3"} if "json" in name else {"source": 2, "target": 3}
    assert [(line, source, target) for line, source, target in pairs_of(tmp_path, file=name, **columns)] == [
        (1, "ein Hund", "a dog"), (2, "", ""), (3, "", ""), (4, "eine Katze", "a cat"), (5, "", "")]
    sources = [source for _, source, _ in read_corpus(Corpus(file=name, **columns), tmp_path, context=2)]
    assert [source.context for source in sources if source.text] == [(), ()]


@pytest.mark.parametrize("name, line", [("a.tsv", "1\t2\t3"), ("a.csv", "1,2,3")])
def test_blank_lines_before_a_table_do_not_change_its_columns(tmp_path, name, line):
    write(tmp_path / name, f"\ufeff\n\n{line}\n{line[:3]}\n{line}\n" if name == "a.tsv" else f"\n\n{line}\n{line}\n")
    assert pairs_of(tmp_path, file=name)[2] == (3, "1", "2")
    (tmp_path / "recipe.yaml").write_text(json.dumps({
        "name": "x", "languages": {"source": "en", "target": "de"},
        "data": {"train": [{"file": name}], "valid": {"file": name, "source": 1, "target": 2}}}))
    assert len(list(first_line_warnings(load_recipe(tmp_path / "recipe.yaml")))) == 1
    write(tmp_path / name, f"\n{line}\n{line}{line[1:]}\n")
    with pytest.raises(CorpusError, match=f"{name}:3:"):
        pairs_of(tmp_path, file=name)


# Parquet and the hub


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """Function that writes columns to NAME.parquet; the cache of datasets is in the temporary directory."""
    import datasets
    import pyarrow
    from pyarrow.parquet import write_table

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def make(name: str, **columns: list) -> Path:
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        write_table(pyarrow.table(columns), path)
        return path

    return make


TRANSLATIONS = [{"de": "ein Hund", "en": "a dog"}, {"de": "eine Katze", "en": "a cat"}]


def test_parquet_has_columns_or_translations(tmp_path, parquet):
    parquet("a", de=["ein Hund", "eine Katze", None], en=["a dog", "a cat", "x\ny"])
    counts = Counts()
    assert pairs_of(tmp_path, counts, file="a.parquet", **KEYS) == [*FIRST_PAIRS, (3, "", "x y")]
    assert counts.inner_newlines == 1
    parquet("b", translation=[*TRANSLATIONS, None])
    assert pairs_of(tmp_path, file="b.parquet", **KEYS) == [*FIRST_PAIRS, (3, "", "")]
    assert pairs_of(tmp_path, file="b.parquet", limit=1, **KEYS) == FIRST_PAIRS[:1]


def test_the_name_of_a_parquet_file_is_no_pattern_and_wrong_files_are_errors(tmp_path, parquet):
    parquet("a1", de=["falsch"], fr=["wrong"])
    write(tmp_path / "b.parquet", "no parquet")
    for wrong in ("a[1].parquet", "a1.parquet", "b.parquet", "no.parquet"):     # a1.parquet has no column en
        with pytest.raises(CorpusError):
            pairs_of(tmp_path, file=wrong, **KEYS)
    for name in ("a[1]", "a*", "{a,b}"):
        parquet(name, de=["ein Hund", "eine Katze"], en=["a dog", "a cat"])
        assert pairs_of(tmp_path, file=f"{name}.parquet", **KEYS) == FIRST_PAIRS


def test_unused_parquet_columns_are_not_read(tmp_path, parquet):
    import pyarrow

    beyond = pyarrow.array([2**62, 0], pyarrow.timestamp("us"))                 # Python has no such date
    parquet("a", de=["ein Hund", "eine Katze"], en=["a dog", "a cat"], when=beyond)
    assert pairs_of(tmp_path, file="a.parquet", **KEYS) == FIRST_PAIRS


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_on_disk_whose_name_datasets_takes_for_a_pattern_is_refused(tmp_path, parquet, streaming):
    """datasets 5.2 would interpret the names as patterns: it reads set1 for `set[1]`, and all directories for
    `set*`."""
    parquet("set1/train", translation=[{"de": "falsch", "en": "wrong"}])
    for name in ("set[1]", "set*", "set?", "set*/deeper"):
        (tmp_path / name).mkdir()
        parquet(f"{name}/train", translation=TRANSLATIONS)
        with pytest.raises(CorpusError):
            pairs_of(tmp_path, hub=str(tmp_path / name), split="train", streaming=streaming, **KEYS)
    parquet("{a,set1}/train", translation=TRANSLATIONS)
    assert pairs_of(tmp_path, hub=str(tmp_path / "{a,set1}"), split="train", streaming=streaming, **KEYS) == FIRST_PAIRS


def test_a_data_set_of_the_hub_may_lie_on_disk(tmp_path, parquet):
    parquet("set/train", translation=TRANSLATIONS)
    hub = {"hub": str(tmp_path / "set"), "split": "train", **KEYS}
    assert pairs_of(tmp_path, **hub) == FIRST_PAIRS
    assert pairs_of(tmp_path, limit=1, **hub) == FIRST_PAIRS[:1]
    for wrong in ({"target": "fr"}, {"hub": str(tmp_path / "nothing")}, {"split": "tst"}):
        with pytest.raises(CorpusError):
            pairs_of(tmp_path, **hub | wrong)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_that_breaks_off_is_an_error(monkeypatch, streaming):
    import datasets
    import huggingface_hub

    def rows():
        yield {"de": "ein Hund", "en": "a dog"}
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **options: rows())
    with pytest.raises(CorpusError):
        pairs_of(Path(), hub="wmt/wmt14", config="de-en", split="train", streaming=streaming, **KEYS)


# Translation memories


TMX = """<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="de-DE"><seg>ein <bpt i="1">&lt;b&gt;</bpt>Hund</seg></tuv><tuv xml:lang="en"><seg>a
dog</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>a cat</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize("name", ["memory.tmx", "memory.tmx.gz", "memory.tmx.zst"])
def test_a_translation_memory_gives_its_units_and_empty_text_for_what_is_lacking(tmp_path, name):
    write(tmp_path / name, TMX)
    counts = Counts()
    assert pairs_of(tmp_path, counts, file=name, source="de", target="en") == [
        (1, "ein Hund", "a dog"), (2, "", "a cat")]
    assert counts.inner_newlines == 1
    kept = list(clean(read_corpus(Corpus(file=name, source="de", target="en"), tmp_path), Cleaning(), counts))
    assert [number for number, *_ in kept] == [1] and counts.dropped == {"empty": 1}
    assert pairs_of(tmp_path, file=name, source="de", target="en", markup=True)[0][1] == "ein <b>Hund"
    assert pairs_of(tmp_path, file=name, text="en") == [(1, "", "a dog"), (2, "", "a cat")]
    assert pairs_of(tmp_path, file=name, source="ger", target="eng", limit=1) == FIRST_PAIRS[:1]


def test_a_forbidden_character_of_a_translation_memory_is_counted_with_its_line(tmp_path):
    write(tmp_path / "memory.tmx", TMX.replace("a cat", "a c&#1;t\x02"))
    counts = Counts()
    assert pairs_of(tmp_path, counts, file="memory.tmx", text="en")[1] == (2, "", "a c\ufffdt\ufffd")
    assert (counts.forbidden_characters, counts.first_forbidden, len(counts.repairs())) == (2, 4, 2)
    spec = Corpus(file="memory.tmx", text="en")
    kept = list(clean(read_corpus(spec, tmp_path), Cleaning(remove_damaged=True), counts, sides=1))
    assert len(kept) == 1 and counts.dropped == {"damaged": 1}


def test_the_languages_of_a_translation_memory_are_the_recipes(tmp_path):
    write(tmp_path / "memory.tmx", TMX)
    (tmp_path / "recipe.yaml").write_text(
        "name: x\nlanguages: {source: de, target: en}\n"
        "data: {train: [{file: memory.tmx}], valid: {file: memory.tmx}}\n")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert next(as_lines(read_pairs(recipe, recipe.data.valid[0]))) == (1, "ein Hund", "a dog")


def test_a_tag_stands_before_each_source(tmp_path):
    write(tmp_path / "pairs.tsv", "ein Hund\ta dog\n")
    pairs = read_corpus(Corpus(file="pairs.tsv", tag="<BT>"), tmp_path)
    assert list(as_lines(pairs)) == [(1, "<BT> ein Hund", "a dog")]


# Names


CONTENTS = {
    "tsv": "{source}\t{target}\n", "csv": "{source},{target}\n",
    "jsonl": '{{"de": "{source}", "en": "{target}"}}\n',
    "tmx": '<tmx><tu><tuv xml:lang="de"><seg>{source}</seg></tuv><tuv xml:lang="en"><seg>{target}</seg></tuv></tu>'
           '</tmx>',
}


@pytest.mark.parametrize("name", ["a[1]", "a*", "{a1,ab}", "~a", "a%31"])
@pytest.mark.parametrize("form", ["files", "tsv.zst", "csv", "jsonl", "tmx", "parquet"])
def test_the_name_of_a_file_is_no_pattern(tmp_path, parquet, form, name):
    """File names are not interpreted as patterns, neither when files are checked nor when they are read."""
    kind, _, packed = form.partition(".")

    def make(stem: str, **texts: str) -> None:
        if kind == "parquet":
            parquet(stem, **{{"source": "de", "target": "en"}[side]: [text] for side, text in texts.items()})
        elif kind == "files":
            for side, text in texts.items():
                write(tmp_path / f"{stem}.{side}{packed and f'.{packed}'}", f"{text}\n")
        else:
            write(tmp_path / f"{stem}.{form}", CONTENTS[kind].format(**texts))

    for beside in ("a1", "ab", "a"):
        make(beside, source="falsch", target="wrong")
    corpus = {"files": {"source": f"{name}.source", "target": f"{name}.target"}, "tsv": {"file": f"{name}.tsv"},
              "csv": {"file": f"{name}.csv"}}.get(kind, {"file": f"{name}.{kind}", **KEYS})
    corpus = {key: value + (packed and f".{packed}") if value not in KEYS.values() else value
              for key, value in corpus.items()}
    text = json.dumps({"name": "x", "languages": KEYS, "data": {"train": [corpus], "valid": corpus}})
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match="there is no file"):
        load_recipe(tmp_path / "recipe.yaml")
    make(name, source="ein Hund", target="a dog")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert list(as_lines(read_pairs(recipe, recipe.data.valid[0]))) == FIRST_PAIRS[:1]
    absolute = recipe.data.train[0].resolve(recipe.data_directory)
    assert list(as_lines(read_pairs(recipe, absolute))) == FIRST_PAIRS[:1]


# Cleaning


def cleaned(pairs: list[tuple[str, str]], **options) -> tuple[list[int], Counts]:
    """Return the numbers of the pairs that are kept, counted from 1."""
    counts = Counts(lines=len(pairs))
    numbered = [(number, Source(source), target) for number, (source, target) in enumerate(pairs, 1)]
    kept = list(clean(numbered, Cleaning(**options), counts))
    assert kept == [(number, Source(canonical(pairs[number - 1][0])), canonical(pairs[number - 1][1]))
                    for number, _, _ in kept]                                   # as the model sees them
    assert counts.kept == len(kept)
    return [number for number, _, _ in kept], counts


def test_each_reason_is_counted_with_its_first_line():
    pairs = [
        ("ein Hund", "a dog"),
        ("", "a dog"), ("ein Hund", ""), (" \t\u3000", "a dog"),
        ("x" * 21, "a dog"), ("ein Hund", "x" * 21),
        ("x" * 11, "x" * 20), ("x" * 20, "x" * 11),
        ("taxi", "taxi"),
        ("ein Hund", "a dog"), ("ein Hund", "a hound"), ("ein Hund", "a dog"),
    ]
    kept, counts = cleaned(pairs, max_characters=20, max_length_ratio=1.5, remove_identical=True,
                           remove_duplicates=True)
    assert kept == [1, 11]
    assert counts.dropped == {"empty": 3, "too_long": 2, "length_ratio": 2, "identical": 1, "duplicate": 2}
    assert counts.examples == {"empty": 2, "too_long": 5, "length_ratio": 7, "identical": 9, "duplicate": 10}
    assert json.loads(json.dumps(counts.to_dict())) == counts.to_dict()


def test_only_empty_and_very_long_pairs_are_dropped_by_default():
    pairs = [("taxi", "taxi"), ("taxi", "taxi"), ("x" * 11, "x" * 5000), ("", ""), ("x", "x" * 5001)]
    kept, counts = cleaned(pairs)
    assert kept == [1, 2, 3]
    assert counts.dropped == {"empty": 1, "too_long": 1}


def test_the_length_ratio_says_nothing_of_short_texts():
    pairs = [("x" * short, "x" * long) for short, long in ((10, 100), (1, 50), (11, 22), (11, 23), (12, 24))]
    pairs += [(target, source) for source, target in pairs]
    kept, _ = cleaned(pairs, max_length_ratio=2.0)
    assert kept == [1, 2, 3, 5, 6, 7, 8, 10]


def test_white_space_around_a_text_has_no_length():
    kept, _ = cleaned([(" " * 50 + "x" * 11, "x" * 11 + "\t" * 50)], max_characters=11, max_length_ratio=1.5)
    assert kept == [1]


def test_duplicates_are_equal_on_both_sides():
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "b"), ("ab", "c"), ("a", "bc"), ("a", "b"), ("a ", "b")]
    assert cleaned(pairs, remove_duplicates=True)[0] == [1, 2, 3, 4, 5, 6]


def test_cleaning_is_lazy():
    def endless():
        number = 0
        while True:
            number += 1
            yield number, Source("ein Hund" if number % 3 == 0 else ""), "a dog"

    pairs = clean(endless(), Cleaning(), Counts())
    assert [next(pairs)[0] for _ in range(3)] == [3, 6, 9]
