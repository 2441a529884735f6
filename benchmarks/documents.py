"""Time of translating a document, relative to the time for its sentences as lines of text.

    python -m benchmarks.documents MODEL --source FILE [--beam-size N] [--repetitions 3]

Two documents are made of the lines of FILE: an HTML page of 2 MB with a link in every fifth sentence, and a PO file of
5,000 messages with a placeholder in every fifth message. The commands run in turn, each in a new process.
"""

import argparse
import html
import tempfile
from collections.abc import Iterator
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median

from benchmarks.measuring import environment
from benchmarks.starting import SEQ2SEQ, run
from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.html import HtmlDocument
from seq2seq.formats.po import PoDocument

PAGE_BYTES, MESSAGES = 2_000_000, 5_000


def different_sentences(lines: list[str]) -> Iterator[str]:
    """Yield the lines once as they are, then again and again, each with a new number before it: none occurs twice."""
    yield from lines
    for number, line in zip(count(2), cycle(lines), strict=False):
        yield f"{number} {line}"


def page(lines: list[str], page_bytes: int) -> bytes:
    """Return an HTML page of at least `page_bytes` bytes. Each paragraph has five sentences, one with a link."""
    sentences, paragraphs, size = different_sentences(lines), [], 0
    while size < page_bytes:
        texts = [html.escape(text, quote=False) for text in islice(sentences, 5)]
        first, space, rest = texts[2].partition(" ")
        texts[2] = f'<a href="page.html">{first}</a>{space}{rest}'
        paragraphs.append(f"<p class='text'>{' '.join(texts)}</p>\n")
        size += len(paragraphs[-1].encode())
    return f"<!DOCTYPE html>\n<html><body>\n{''.join(paragraphs)}</body></html>\n".encode()


def catalogue(lines: list[str]) -> bytes:
    """Return a PO file of MESSAGES messages. Every fifth message ends with a placeholder."""
    entries = ['msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n']
    for number, text in enumerate(islice(different_sentences(lines), MESSAGES)):
        text = text.replace("\\", "\\\\").replace('"', '\\"') + (" %s" if number % 5 == 4 else "")
        entries.append(f'#: file.c:{number}\nmsgid "{text}"\nmsgstr ""\n')
    return "\n".join(entries).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the time of a document with that of its sentences.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="text in the source language, a sentence per line")
    parser.add_argument("--beam-size", type=int, help="(default: as in the model's recipe)")
    parser.add_argument("--page-bytes", type=int, default=PAGE_BYTES)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    lines = list(dict.fromkeys(line.strip() for line in arguments.source.read_text(encoding="utf-8").split("\n")
                               if line.strip()))
    print(", ".join(f"{key} {value}" for key, value in environment().items()))
    print("\n| document | sentences | document / lines | seconds of the lines |\n|---|---|---|---|")
    documents = (("page.html", page(lines, arguments.page_bytes), HtmlDocument),
                 ("messages.po", catalogue(lines), PoDocument))
    for name, data, parse in documents:
        with tempfile.TemporaryDirectory() as folder:
            document, text = Path(folder, name), Path(folder, "lines.txt")
            document.write_bytes(data)
            sentences = list(dict.fromkeys(DividedDocument(parse(data)).sentences))
            text.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
            command = [*SEQ2SEQ, "translate", str(arguments.model), "--precision", "int8", "--output",
                       str(Path(folder, "out"))]
            if arguments.beam_size:
                command += ["--beam-size", str(arguments.beam_size)]
            times = [[run([*command, str(path)]).wall for path in (document, text)]
                     for _ in range(arguments.repetitions)]
        ratio, seconds = median(one / other for one, other in times), median(other for _, other in times)
        print(f"| {name} | {len(sentences):,} | {ratio:.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
