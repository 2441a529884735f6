"""Messages about wrong corpora, translation memories and cleaning."""

import bz2
import gzip
import json
import lzma
import signal
import sys
from unittest import mock

import zstandard
from catalogue import Catalogue

from seq2seq.data.block_processes import MIN_BLOCKS, BlockProcesses
from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts, first_line_warnings, read_corpus
from seq2seq.recipe import Cleaning, Corpus, Languages, load_recipe
from seq2seq.tokenizers.source import Source

MESSAGES = Catalogue("data")
FILES = {"source": "a.de", "target": "a.en"}
KEYS = {"source": "de", "target": "en"}
ZIP = b"PK\x03\x04\x14"
HEAD = '<tmx version="1.4"><header/><body>\n'


def corpus(name, files, **spec):
    """Add a case: a corpus that consists of these files, text or bytes by name."""
    def case(folder):
        for file, contents in files.items():
            (folder / file).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return list(read_corpus(Corpus(**spec), folder))

    MESSAGES.add(name, case)


def unit(**texts):
    variants = (f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu>{''.join(variants)}</tu>\n"


def memory(name, text, **options):
    corpus(name, {"memory.tmx": text}, file="memory.tmx", **(KEYS | options))


corpus("no file", {"a.en": "x"}, **FILES)
corpus("no compressed file", {"a.en": "x"}, source="a.de.gz", target="a.en")
corpus("bytes that are not UTF-8", {"a.de": "x\nläuft\n".encode("latin1"), "a.en": "x\nx\n"}, **FILES)
memory("another encoding", HEAD.encode() + unit(de="Käse", en="cheese").encode("latin1"))
memory("an encoding that is none", HEAD.replace("<tmx", '<?xml version="1.0" encoding="zip"?><tmx'))
corpus("UTF-16", {"a.de": "x\n".encode("utf-16"), "a.en": "x\n"}, **FILES)
corpus("a long line", {"a.de": "x\nxxxxxxxx\n", "a.en": "x\nx\n"}, **FILES, max_line_bytes=7)
for form, packed in (("gzip", gzip.compress(b"x")), ("Zstandard", zstandard.compress(b"x")),
                     ("bzip2", bz2.compress(b"x")), ("xz", lzma.compress(b"x")), ("ZIP", ZIP)):
    corpus(f"{form} without its ending", {"a.de": packed, "a.en": "x\n"}, **FILES)
corpus("a line more", {"a.de": "x\n" * 7, "a.en": "x\n" * 5}, **FILES)
corpus("one empty file", {"a.de": "x\n", "a.en": ""}, **FILES)

for form, comma in (("tsv", "\t"), ("csv", ",")):
    table = f"a.{form}"
    corpus(f"{form}: too few columns", {table: f"x{comma}y\n"}, file=table, source=5, target=1)
    corpus(f"{form}: another number of columns", {table: f"x{comma}y\nx{comma}y{comma}z\n"}, file=table)
    corpus(f"{form}: no such column", {table: f"de{comma}en\nx{comma}y\n"}, file=table, header=True, source="de",
           target="fr")
    corpus(f"{form}: two columns of a name", {table: f"de{comma}de{comma}en\n"}, file=table, header=True, **KEYS)
    corpus(f"{form}: empty", {table: ""}, file=table, header=True, **KEYS)
corpus("tsv: a line without tab", {"a.tsv": "x\ty\nx\n"}, file="a.tsv")
corpus("csv: a quote that is not closed", {"a.csv": 'x,y\nx,"y\n'}, file="a.csv")
corpus("csv: a quote in the middle", {"a.csv": 'x,y\nx,y "z"\n'}, file="a.csv")

for name, line in (("not complete", '{"de": "x"'), ("no object", "null"), ("no such column", '{"de": "x", "fr": "y"}'),
                   ("no text", '{"de": "x", "en": 7}'), ("half a character", r'{"de": "x", "en": "\ud83d"}')):
    corpus(f"jsonl: {name}", {"a.jsonl": f'{json.dumps({"de": "x", "en": "y"})}\n{line}\n'}, file="a.jsonl", **KEYS)

memory("tmx: not well-formed", HEAD + unit(de="x", en="a & b"))
memory("tmx: another file", "<html/>")
memory("tmx: an entity", '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">]>\n<tmx/>')
memory("tmx: an unknown entity",
       f'<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n{HEAD}{unit(de="x", en="a&nbsp;dog")}</body></tmx>')
memory("tmx: an unknown encoding", '<?xml version="1.0" encoding="nonsense"?>\n<tmx/>')
memory("tmx: no such language", f"{HEAD}{unit(en='x', fr='y')}{unit()}<tu><tuv><seg/></tuv></tu></body></tmx>",
       source="sw")
memory("tmx: two languages that it lacks", f"{HEAD}{unit(en='x', fr='y')}</body></tmx>", source="sw", target="yo")
memory("tmx: a language beyond the limit", f"{HEAD}{unit(en='x')}{unit(de='x', en='y')}</body></tmx>", limit=1)
memory("tmx: a long segment", f"{HEAD}{unit(de='x', en='x' * 8)}</body></tmx>", max_line_bytes=7)


@MESSAGES
def zstandard_is_not_installed(folder):
    (folder / "a.zst").write_bytes(zstandard.compress(b"x"))
    with mock.patch.dict(sys.modules, zstandard=None):
        return list(read_corpus(Corpus(source="a.zst", target="a.zst"), folder))


@MESSAGES
def the_columns_of_a_table_are_unclear(folder):
    (folder / "a.tsv").write_text("7\ta dog\tein Hund\n")
    (folder / "recipe.yaml").write_text("name: x\nlanguages: {source: en, target: de}\n"
                                        "data: {train: [{file: a.tsv}], valid: {file: a.tsv, source: 2, target: 3}}\n")
    return "\n".join(" ".join(warning) for warning in first_line_warnings(load_recipe(folder / "recipe.yaml")))


@MESSAGES
def the_header_of_a_table_would_be_read_as_a_pair(folder):
    (folder / "a.tsv").write_text("English\tGerman\na dog\tein Hund\n")
    (folder / "recipe.yaml").write_text("name: x\nlanguages: {source: en, target: de}\n"
                                        "data: {train: [{file: a.tsv}], valid: {file: a.tsv, source: 1, target: 2}}\n")
    return "\n".join(" ".join(warning) for warning in first_line_warnings(load_recipe(folder / "recipe.yaml")))


@MESSAGES
def a_process_that_prepares_text_is_killed(folder):
    with BlockProcesses(2) as processes:
        return list(processes.map(signal.raise_signal, [signal.SIGKILL] * MIN_BLOCKS))


@MESSAGES
def the_summary_of_cleaning(folder):
    pairs = ["ein Hund|a dog", "|a dog", "x|" + "y" * 21, "x" * 11 + "|" + "y" * 20, "taxi|taxi", "ein Hund|a dog"]
    counts = Counts(len(pairs), carriage_returns=3, inner_newlines=2, byte_order_marks=1)
    options = Cleaning(max_characters=20, max_length_ratio=1.5, remove_identical=True, remove_duplicates=True)
    texts = [pair.split("|") for pair in pairs]
    list(clean([(number, Source(source), target) for number, (source, target) in enumerate(texts, 1)], options, counts))
    return counts.summary()


@MESSAGES
def lingua_is_not_installed(folder):
    with mock.patch("seq2seq.data.language_identification.find_spec", lambda name: None):
        return list(clean([], Cleaning(language="lingua"), Counts(), languages=Languages(source="de", target="en")))


test_message, test_every_message_belongs_to_a_case = MESSAGES.tests()
