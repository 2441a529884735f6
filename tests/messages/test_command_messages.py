"""Messages about wrong options and inputs of commands. Each ends with exit code 2 and prints nothing else."""

import gzip
import re
import shlex
import sys
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from catalogue import Catalogue
from command_files import (
    LANGUAGE_MODEL,
    RECIPE,
    run_command,
    save_model,
    save_run,
    tokenizers,
    write_lines,
    write_recipe,
)

messages = Catalogue("command")
TRANSLATE = [
    # The model and the files.
    "nothing", "nothing -o out", "nothing --workers 2", "mine.yaml", "not.yaml", "trained.yaml",
    "runs/trained/recipe.yaml", "model no.txt", "model -o nowhere/out", "model -o folder",
    "model -o file/out", "model -o /dev/full", "model -o out.gz", "model long.gz", "model long.gz --max-line-bytes 7",
    "model --prefix-file two", "model --require-file two", "model two --prefix-file three",
    "model --prefix-file no.txt",
    "model --fusion mine.yaml", "model --ensemble nothing", "model --ensemble speaker", "model --ensemble strange",
    "model --fusion strange_speaker",
    # Options that do not go together.
    "model --sampling --beam-size 3", "model --top-p 0.5", "model --temperature 0.5", "model --mbr 32",
    "model --sampling --temperature 0", "model --sampling --diverse-groups 2",
    "model --diverse-groups 3", "model --diverse-strength 3", "model --seed 3",
    "model --ignore-case", "model --mbr 2 --n-best 3 --format jsonl",
    "model --n-best 3 --format jsonl", "model --min-length 3 --max-length 2",
    "model --forbid ' '", "model --word-confidence", "model --n-best 2",
    "model --ensemble-mean probability", "model --fusion-weight 0.5",
    "model --sampling --require-file phrases", "model --forbid 'caf\udce9'", "model --length-penalty 1000",
    "model --mbr 5000", "model --device meta", "model --device tpu",
    "model --min-length 500",
    # Values that keys do not have.
    "model --top-k", "model --topk 10", "model --mbr many", "model --mbr '[4'", "model --length-penalty-form Wu",
    "model --beam-size 0", "model --require dog --forbid dog",
    # Documents.
    "model page.html.gz", "model a.pdf", "model a.XLSX", "model texts.json", "model page.html --format jsonl",
    "model page.html --n-best 2", "model page.html --document docs", "model page.html --document docx",
    "model page.html --placeholder '('", "model page.html --glossary none.tsv",
]
OTHERS = [
    "evaluate mine.yaml", "export mine.yaml --to ctranslate2 -o x",
    "score model long.gz long.gz", "score model two three", "score model two words",
    "score model - -", "align model - -", "compare two - -", "compare - two --reference -", "evaluate - --reference -",
    "score model two two --precision int8", "evaluate two --reference two --precision bf16 --threads 1",
    "report model -o page.pdf", "rescore two",
    "evaluate", "evaluate two --source two --reference two", "evaluate two", "evaluate model --source two",
    "evaluate model --reference two", "evaluate speaker --reference two --source two",
    "evaluate speaker --reference two --metric bleu", "evaluate model --target-language zh",
    "evaluate two --reference two --target-language japanese", "evaluate two --reference two --metric perplexity",
    "evaluate model --source two --reference three", "evaluate model --source file --reference two",
    "evaluate two --reference latin",
    "evaluate latin --reference two", "evaluate model",
    "evaluate model --source two --reference two --recipe mine.yaml",
    "evaluate two --reference two --tag law", "evaluate two --reference two --glossary phrases",
    "compare two", "compare two latin --reference two", "compare two three --reference two", "compare two model",
    "compare two model --reference two", "compare model model --source two",
    "tune model beam_size=1 --source two", "tune speaker beam_size=1", "tune model beam_size=1,1 beam_size=2",
    "average runs/tiny/checkpoints/step-00000005 --last 1 -o x", "average runs/tiny -o model",
    "average runs/tiny -o runs/tiny", "average runs/begun -o x",
    "average runs/tiny runs/other -o x", "average model -o x",
    "train recipe.yaml --run-dir file", "train recipe.yaml --run-dir file/run --restart",
    "check recipe.yaml --run-dir file", "train recipe.yaml --device tpu --run-dir x",
    "export model --to huggingface --quantization int8 -o x",
    "export model --to ctranslate2 --splitter a.onnx -o x",
    "export model --to seq2seq --source two -o x", "export model --to seq2seq -o model",
]


@cache
def files() -> TemporaryDirectory:
    """Directory with all files that the commands name."""
    folder = TemporaryDirectory()
    place = Path(folder.name)
    other = tokenizers(("ein Haus", "a house"))
    save_model(place / "model")
    save_model(place / "strange", vocabulary=other)
    save_model(place / "speaker", 2, LANGUAGE_MODEL)
    save_model(place / "strange_speaker", 2, LANGUAGE_MODEL, other)
    for run in ("tiny", "other"):
        save_run(place / "runs" / run, [5])
    save_run(place / "runs/begun", [], between=[3, 4])
    save_model(place / "runs/trained/bundles/x")
    write_recipe(place)
    (place / "mine.yaml").write_text(RECIPE.replace("tiny", "mine"))
    (place / "trained.yaml").write_text(RECIPE.replace("tiny", "trained"))
    (place / "not.yaml").write_text("name: tiny\n")
    for count, name in ((2, "two"), (3, "three")):
        write_lines(place / name, ["x"] * count)
    write_lines(place / "words", ["x", "Hund " * 100])
    (place / "phrases").write_text("cat\n")
    (place / "latin").write_bytes(b"a dog\nthe k\xe4tzchen\n")
    (place / "long.gz").write_bytes(gzip.compress(b"ein Hund\n" + b"x" * 1_000_001))
    (place / "file").touch()
    (place / "folder").mkdir()
    (place / "page.html").write_bytes(b"<p>eine Katze</p>\n")
    (place / "page.html.gz").write_bytes(gzip.compress(b"<p>eine Katze</p>\n"))
    (place / "a.pdf").write_bytes(b"%PDF-1.4\n%\xe2\xe3\n")
    (place / "a.XLSX").write_bytes(b"PK\x03\x04")
    (place / "texts.json").write_text('{"a": "ein Hund",\n "b": }\n')
    return folder


def refused(folder: Path, command: str, missing: str = "") -> str:
    """Run a command, and return its message. It must leave the files as they were, which all commands share.

    missing: package that cannot be imported.
    """
    place = Path(files().name)
    before = sorted(path for path in place.rglob("*") if path.name != ".lock")
    with (chdir(place), patch.object(torch.cuda, "is_available", lambda: False),
          patch.dict(sys.modules, {missing: None} if missing else {})):
        result = run_command(*shlex.split(command), stdin=b"ein Hund\n")
    assert (result.code, result.out) == (2, b"")
    assert sorted(path for path in place.rglob("*") if path.name != ".lock") == before
    err = result.err.replace(str(place.resolve()), f"{folder}/here").replace(str(place), f"{folder}/here")
    return re.sub(r"^translating in .*\n", "", err, flags=re.MULTILINE)


for command in (*(f"translate {arguments}" for arguments in TRANSLATE), *OTHERS):
    messages.add(command.encode("ascii", "backslashreplace").decode(), partial(refused, command=command))

messages.add("score model two two, without torch", partial(refused, command="score model two two", missing="torch"))

test_message, test_every_message_belongs_to_a_case = messages.tests()
