"""Run commands on COUNT random hostile inputs of one kind, or of all kinds in turn, each in a new copy of valid files.

    python tests/hostile.py VALID DIRECTORY KIND|all SEED COUNT

VALID contains the files that `make_valid_files` writes. Each input is a change to the copy, and a command. The process
limits its own memory, and a watchdog ends it if an input takes too long; DIRECTORY/input.json then contains the input.
Prints a JSON object: `inputs`, `codes`, `failures`, `peak_bytes` and `slowest_seconds`.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import resource
import shutil
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from marian_models import make
from toy import RECIPE, write_corpus
from trainings import NoTensorBoard

MAX_SECONDS = 20
"""Maximum processor time of an input. The watchdog waits for some times as long, because the machine may be busy."""
MAX_BYTES = 2 * 2**30
"""Maximum memory of an input in bytes, in addition to the memory of the process before the first input."""
ESCAPES = ("\x1b]0;pwned\x07", "\x1b[2J", "\x9b31m", "\r", "\x08" * 9, "\x1bc", "\u202e", "\x00", "\x7f")
SECRET = "sec-3f9a-ret"
"""Text of a file outside the copy, which no input may show. It lies beside the copy."""
sys.path.append(str(Path(__file__).parent / "documents"))
CPU = ("--device", "cpu", "--precision", "fp32", "--threads", "1")
Command = list[str]


def make_valid_files(directory: Path) -> None:
    """Write text, a recipe, a finished run, and a corpus in each other format. The run is trained at the path of the
    copies, because its recipe has absolute paths."""
    from torch.utils.tensorboard import writer

    from seq2seq.recipe import load_recipe
    from seq2seq.storage.checkpoints import best_bundle
    from seq2seq.training.run import train

    real, writer.SummaryWriter = writer.SummaryWriter, NoTensorBoard
    valid, directory = directory, copy_of(directory)
    directory.mkdir(parents=True)
    write_corpus(directory)
    (directory / "recipe.yaml").write_text(RECIPE)
    lines = [(directory / f"train.{side}").read_text().splitlines() for side in ("en", "de")]
    pairs = list(zip(*lines, strict=True))
    (directory / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (directory / "pairs.jsonl").write_text("".join(json.dumps({"en": source, "de": target}) + "\n"
                                               for source, target in pairs))
    (directory / "pairs.tmx").write_text('<tmx version="1.4"><header srclang="en"/><body>' + "".join(
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'
        for source, target in pairs) + "</body></tmx>\n")
    try:
        train(load_recipe(directory / "recipe.yaml"), directory / "run")
        best_bundle(directory / "run").rename(directory / "run" / "bundles" / "model")
        (directory / "run" / "best").write_text("model")
        make(directory / "theirs")
    finally:
        writer.SummaryWriter = real                                             # for the other tests in this process
    directory.rename(valid)


def copy_of(valid: Path) -> Path:
    """Return the path of the copies of the valid files."""
    return valid.parent / "copy"


# Commands, which run in a copy of the valid files


def check(*settings: str) -> Command:
    return ["check", "recipe.yaml", *(f"--set={setting}" for setting in settings)]


def bundle() -> Path:
    """Return the path of the bundle of the run."""
    return Path("run/bundles/model")


def translate(model: str = "run", text: str = "valid.en", *options: str) -> Command:
    return ["translate", model, text, *CPU, *options]


# Kinds of hostile input


def special(draw: random.Random) -> Command:
    """Replace a file by a FIFO, a device, a socket, a directory or a broken link."""
    run = sorted(str(path) for path in Path("run").rglob("*")
                 if path.is_file() and path.name not in (".lock", ".holder"))
    uses: list[tuple[str, Command]] = [
        ("train.en", check()), ("valid.de", check()), ("recipe.yaml", check()),
        ("base.yaml", check("model={base: base.yaml}")), ("pairs.tsv", check(_table("pairs.tsv"))),
        ("pairs.jsonl", check(_table("pairs.jsonl"))), ("pairs.tmx", check(_table("pairs.tmx"))),
        ("taken", check("tokenizer.taken_from=taken")), ("valid.en", translate()), ("out", translate("run", "valid.en",
         "--output", "out")), ("run", translate()), ("words", translate("run", "valid.en", "--require-file", "words")),
        ("valid.en", ["score", "run", "valid.en", "valid.de", *CPU]),
        ("valid.de", ["align", "run", "valid.en", "valid.de", *CPU]),
        ("hyp", ["evaluate", "hyp", "--reference", "valid.de"]),
        ("valid.de", ["evaluate", "train.de", "--reference", "valid.de"]),
        ("averaged", ["average", "run", "--output", "averaged"]),
        ("page.html", ["attention", "run", "--source", "one dog", "--output", "page.html", *CPU]),
        ("nbest", ["rescore", "nbest", "--model", "run", *CPU]),
        *((file, command) for file in draw.sample(run, 4) for command in (
            translate(), ["average", "run", "--output", "averaged"], [*check(), "--run-dir", "run"]))]
    name, command = draw.choice(uses)
    path = Path(name)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    streams = command[:3] == ["translate", "run", name]                         # translates endless text endlessly
    kind = draw.choice(["fifo", "written fifo", "socket", "/dev/null", "/dev/zero", "/dev/full",
                        "/dev/null" if streams else "/dev/random",
                        "directory", "loop", "dangling", "empty"])
    if kind.endswith("fifo"):
        os.mkfifo(path)
        # A reader gets a line or nothing; the output of a writer is read.
        threading.Thread(target=_at_other_end, args=(str(path.absolute()), kind), daemon=True).start()
    elif kind == "socket":
        _bind(path)
    elif kind.startswith("/dev"):
        path.symlink_to(kind)
    elif kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    else:
        path.symlink_to(path.name if kind == "loop" else "nowhere")
    return command


def _table(file: str) -> str:
    columns = "source: 1, target: 2" if file.endswith("tsv") else "source: en, target: de"
    return f"data.train=[{{file: {file}, {columns}}}]"


def _at_other_end(path: str, kind: str) -> None:
    """Keep the other end of a FIFO open until it is deleted, so that no command waits, even one that opens it late."""
    with suppress(OSError):
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        while os.fstat(reading).st_nlink:
            writing = os.open(f"/proc/self/fd/{reading}", os.O_WRONLY | os.O_NONBLOCK)   # never a file that replaced it
            if kind == "written fifo":
                with suppress(BlockingIOError):                                 # the pipe is full of output
                    os.write(writing, b"one dog\n")
            time.sleep(0.1)
            os.close(writing)                                                   # a reading command gets end of file
            with suppress(BlockingIOError):
                while os.read(reading, 65536):
                    pass
            time.sleep(0.02)
        os.close(reading)


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def names(draw: random.Random) -> Command:
    """Use file names with characters that have a meaning in shells, patterns, format strings or options."""
    parts = ["[", "]", "[ab]", "[!a]", "*", "**", "?", "{a,b}", "~", "$HOME", "%s", "{}", "#", "&", ";", "'", '"', "\\",
             " ", "\n", "\t", ":", "=", "-", "--", "..", ".", "@", "a", "b", "ä", "你", "\u202e", "\ud8ff".encode(
                 "utf-8", "surrogatepass").decode("utf-8", "surrogateescape"), "null", "%00", "x" * 200]
    name = "".join(draw.choices(parts, k=draw.randint(1, 4)))
    name = name if name not in (".", "..") else "a"
    # Files that a pattern would match if the name were interpreted as one.
    Path("a").write_text("decoy\n")
    Path("b").write_text("decoy\n")
    use = draw.randrange(7)
    try:
        if use == 0:
            Path("recipe.yaml").rename(name)
            return ["check", name]
        if use == 1:
            Path("train.en").rename(name)
            return check(f"data.train=[{json.dumps({'source': name, 'target': 'train.de'})}]")
        if use == 2:
            Path("run").rename(name)
            return translate(name)
        if use == 3:
            Path("valid.en").rename(name)
            return translate("run", name)
    except OSError:
        pass
    return [translate("run", "valid.en", "--output", name), ["average", "run", "--output", name],
            [*check(), "--run-dir", name]][use % 3]


HUGE = [2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**6, 10**8, 10**9, 10**12, 10**18, 10**30, 10**400]
OPTIONS = ["--n-best", "--beam-size", "--seed", "--threads", "--max-line-bytes", "--length-penalty", "--temperature",
           "--fusion-weight", "--max-length", "--min-length", "--diverse-groups", "--mbr", "--no-repeat-ngram",
           "--top-k", "--coverage-penalty", "--patience", "--diverse-strength"]


def bounds(draw: random.Random) -> Command:
    """Use huge numbers in recipes, options, and the files of a model."""
    number = draw.choice(HUGE)
    value = draw.choice([str(number), f"-{number}", f"{number}.5" if number < 1e30 else "1e308", "1e308", "5e-324"])
    use = draw.randrange(4)
    if use == 0:
        return check(*(f"{key}={value}" for key in draw.sample(_number_keys(), draw.randint(1, 2))))
    if use == 1:
        return translate("run", "valid.en", *(part for option in draw.sample(OPTIONS, draw.randint(1, 2))
                                             for part in (f"{option}{value}".split() if option.endswith("=")
                                                          else (option, value))))
    if use == 2:                                                                # wrong values with correct checksums
        path = bundle() / draw.choice(["recipe.yaml", "metadata.json"])
        text = path.read_text()
        positions = [position for position, character in enumerate(text)
                  if character.isdigit() and not text[position - 1].isalnum() and text[position - 1] not in "._"]
        position = draw.choice(positions)
        end = position
        while text[end:end + 1].isdigit():
            end += 1
        path.write_text(text[:position] + str(number) + text[end:])
        _sign(bundle())
        return translate(str(bundle()))
    path = bundle() / "model.safetensors"
    contents = path.read_bytes()
    length = int.from_bytes(contents[:8], "little")
    header = contents[8:8 + length].decode()
    if draw.random() < 0.3:
        path.write_bytes(min(number, 2**64 - 1).to_bytes(8, "little") + contents[8:])
    else:
        digits = [position for position, character in enumerate(header) if character in "[,"
                  and header[position + 1:position + 2].isdigit()]
        position = draw.choice(digits) + 1
        header = header[:position] + str(number) + header[position + 1:]
        path.write_bytes(len(header.encode()).to_bytes(8, "little") + header.encode() + contents[8 + length:])
    _sign(bundle())
    return translate(str(bundle()))


def _number_keys() -> list[str]:
    from seq2seq.recipe import load_recipe

    found = []

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif path and not path.startswith(("data.t", "data.valid", "languages", "name", "expected")):
            found.append(path)

    walk(load_recipe("recipe.yaml").model_dump(), "")
    return [*found, "data.train.0.limit", "data.train.0.weight", "data.train.0.max_line_bytes", "data.temperature"]


def _sign(bundle: Path) -> None:
    """Correct the checksums of a bundle if its metadata can still be read."""
    import hashlib

    from seq2seq.storage.directories import with_checksum

    try:
        metadata = json.loads((bundle / "metadata.json").read_text())
        for name in metadata["sha256"]:
            metadata["sha256"][name] = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
        (bundle / "metadata.json").write_text(json.dumps(with_checksum(metadata)))
    except (ValueError, KeyError, TypeError, OSError):
        pass


def nesting(draw: random.Random) -> Command:
    """Use deeply nested JSON, YAML and XML, or a few lines that expand to billions of values."""
    depth = draw.choice([60, 70, 200, 300, 900, 1100, 5000, 100_000])
    opening, closing = draw.choice([("[", "]"), ('{"a":', "}"), ("{a: ", "}"), ("- ", ""), ("[[{a: ", "}]]")])
    deep = opening * depth + "1" + closing * draw.choice([depth, 0, depth - 1])
    use = draw.randrange(7)
    if use == 0:
        lines = draw.choice([deep, f"name: {deep}", f"name: x\ndata: {deep}", _aliases(draw), "- " * depth,
                             "".join(f"{' ' * level}a:\n" for level in range(min(depth, 3000)))])
        Path("recipe.yaml").write_text(lines)
        return check()
    if use == 1:
        return check(f"{draw.choice(['data', 'data.train', 'name', 'model', 'expected'])}={deep[:100_000]}")
    if use == 2:
        path = Path("run") / draw.choice(["metrics.jsonl", "tokenizer/metadata.json", "best",
                                          "bundles/model/metadata.json", "recipe.yaml"])
        path.write_text(deep)
        return draw.choice([translate(), [*check(), "--run-dir", "run"], ["average", "run", "--output", "averaged"]])
    if use == 3:
        Path("pairs.jsonl").write_text(f'{{"en": {deep}, "de": "x"}}\n')
        return check(_table("pairs.jsonl"))
    if use == 4:
        entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
        body = draw.choice([f"<tu>{'<tuv>' * depth}", f"{'<a>' * depth}{'</a>' * depth}",
                            '<tu><tuv xml:lang="en"><seg>&e11;</seg></tuv></tu>',
                            f'<tu><tuv xml:lang="en"><seg>{"<hi>" * depth}x{"</hi>" * depth}</seg></tuv></tu>'])
        Path("pairs.tmx").write_text(f'<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY e0 "lol">{entities}]><tmx><body>'
                                     f"{body}</body></tmx>")
        return check(_table("pairs.tmx"))
    if use == 5:
        Path("nbest").write_text(f'{{"line": 1, "source": "a", "translations": {deep}}}\n')
        return ["rescore", "nbest", "--model", "run", *CPU]
    path = bundle() / "model.safetensors"
    contents = path.read_bytes()
    header = deep.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + contents[8:])
    _sign(bundle())
    return translate(str(bundle()))


def _aliases(draw: random.Random) -> str:
    opening, closing = draw.choice([("[", "]"), ("{b: ", "}")])
    copies = 9 if opening == "[" else 1
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} {opening}{', '.join([f'*a{n - 1}'] * copies)}{closing}"
                                  for n in range(1, draw.choice([7, 12, 40]))]
    return "\n".join([*lines, "name: x"])


def escapes(draw: random.Random) -> Command:
    """Use control characters in names, keys, values and text that messages quote."""
    escape = draw.choice(ESCAPES)
    quoted = json.dumps(escape)[1:-1]
    use = draw.randrange(9)
    recipe = Path("recipe.yaml").read_text()
    if use == 0:
        replaced = draw.choice(["tiny", "train.en", "source: en", "vocab_size", "300"])
        Path("recipe.yaml").write_text(recipe.replace(replaced, f'"{quoted}"', 1))
        return check()
    if use == 1:
        Path("recipe.yaml").write_text(recipe + draw.choice([escape, f"{escape}: 1", f"# {escape}", f'"{quoted}": 1']))
        return check()
    if use == 2:
        return check(draw.choice([f"name={escape}", f'name="{quoted}"', f"{escape}=1", f"model.type={escape}",
                                  f'data.train.0.name="{quoted}"', f'data.root="{quoted}"']))
    if use == 3:
        return draw.choice([translate(f"run{escape}"), translate("run", f"valid{escape}"), ["check", f"no{escape}"],
                            [f"check{escape}"], ["check", f"--no{escape}"],
                            translate("run", "valid.en", "--precision", escape),
                            translate("run", "valid.en", "--forbid", escape),
                            ["export", "run", "--to", escape, "--output", "x"],
                            ["evaluate", "train.de", "--reference", "train.de", "--metric", escape],
                            ["average", "run", "--output", f"no{escape}/x/y"]])
    if use == 4:
        path = bundle() / "metadata.json"
        replaced = draw.choice(['"sha256"', '"model.safetensors"', '"step"', "tokenizer.model"])
        path.write_text(path.read_text().replace(replaced, f'"{quoted}"', 1))
        if draw.random() < 0.5:
            _sign(bundle())
        return translate(str(bundle()))
    if use == 5:
        path = bundle() / "recipe.yaml"
        path.write_text(path.read_text().replace(draw.choice(["transformer", "tiny", "d_model", "true", "en"]),
                                                 f'"{quoted}"', 1))
        _sign(bundle())
        return translate(str(bundle()))
    if use == 6:
        name = draw.choice(["train.en", "pairs.tsv", "pairs.jsonl", "pairs.tmx"])
        lines = Path(name).read_text().splitlines()
        position = draw.randrange(len(lines))
        lines[position] = draw.choice([escape + lines[position], escape, lines[position].replace("d", escape, 1)])
        Path(name).write_text("\n".join(lines) + "\n")
        return check() if name == "train.en" else check(_table(name))
    if use == 7:
        Path("run/metrics.jsonl").write_text(f'{{"{quoted}": "{quoted}"}}\n{escape}\n')
        return [*check(), "--run-dir", "run"]
    path = Path("run/tokenizer") / f"t{escape}"
    with suppress(OSError, ValueError):
        path.write_text("x")
    (Path("run") / "recipe.yaml").write_text(f"name: {escape}")
    return [*check(), "--run-dir", "run"]


def flips(draw: random.Random) -> Command:
    """Flip one bit of one file of a run."""
    files = sorted(path for path in Path("run").rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(files)
    contents = bytearray(path.read_bytes())
    position = draw.randrange(min(len(contents), draw.choice([400, len(contents)])))
    contents[position] ^= 1 << draw.randrange(8)
    path.write_bytes(contents)
    return draw.choice([translate(), translate(str(path.parent)) if "step" in path.parent.name else translate(),
                        [*check(), "--run-dir", "run"], ["average", "run", "--output", "averaged"],
                        ["score", "run", "valid.en", "valid.de", *CPU],
                        ["average", *map(str, sorted(Path("run/checkpoints").iterdir())), "--output", "averaged"]])


IMPORT = ["import", "--from", "huggingface", "theirs", "--output", "imported"]


def imports(draw: random.Random) -> Command:
    """Import a directory with special files, hostile pickles, numbers, vocabularies and tokenizers."""
    use, folder = draw.randrange(8), Path("theirs")
    path = draw.choice(sorted(folder.iterdir()))
    if use == 0:
        _make_special(draw, path)
    elif use <= 2:
        (folder / "model.safetensors").unlink()
        _make_pickle(draw, folder / "pytorch_model.bin")
    elif use == 3:
        path = folder / draw.choice(["config.json", "generation_config.json", "tokenizer_config.json"])
        values = json.loads(path.read_text())
        for key in draw.sample(sorted(values), min(len(values), draw.randint(1, 3))):
            values[key] = draw.choice([*HUGE[:-1], *(-number for number in HUGE[:-1]), 0, 1, 0.5, None, "x", [], [[]],
                                       {}, True, float("nan"), float("inf"), "../../secret", "x" * 10**6, [1] * 10**5])
        path.write_text(json.dumps(values))
    elif use == 4:
        ids = json.loads((folder / "vocab.json").read_text())
        name = draw.choice(sorted(ids))
        ids |= draw.choice([{f"piece {number}": number for number in range(len(ids), draw.choice([10**6, 1_100_000]))},
                            {name: draw.choice([-1, 0, 10**18, 10**400, 0.5, None, [], "1", True])},
                            {"x" * 10**6: len(ids)}, {"\0": len(ids)}, {f">>{'a' * 10**5}<<": len(ids)},
                            {f">>x{number}<<": len(ids) + number for number in range(3000)}])
        (folder / "vocab.json").write_text(json.dumps(ids))
    elif use == 5:
        (folder / draw.choice(["source.spm", "target.spm"])).write_bytes(_hostile_sentencepiece(draw))
    elif use == 6:
        _flip(draw, path)
    else:
        _damage_header(draw, folder / "model.safetensors")
    return IMPORT


def _make_special(draw: random.Random, path: Path) -> None:
    """Replace a file by one from which reading blocks, does not end, or shows a file outside."""
    if path.is_symlink() or path.exists():
        path.unlink()
    kind = draw.choice(["fifo", "socket", "/dev/zero", "/dev/random", "../../secret", "directory", "loop", "terabyte",
                        "empty", "nowhere"])
    if kind == "fifo":
        os.mkfifo(path)                                                         # nobody is at its other end
    elif kind == "socket":
        _bind(path)
    elif kind == "directory":
        path.mkdir()
    elif kind in ("terabyte", "empty"):
        with path.open("wb") as file:
            file.truncate(10**12 if kind == "terabyte" else 0)
    else:
        path.symlink_to({"loop": path.name, "../../secret": copy_root() / "secret"}.get(kind, kind))


def copy_root() -> Path:
    return Path.cwd().parent


class _Payload:
    """Object whose unpickling calls a function."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call[0], self.call[1:]


def _make_pickle(draw: random.Random, path: Path) -> None:
    import builtins
    import subprocess

    import torch

    one, marker = torch.ones(draw.choice([1, 1000, 300_000])), str(copy_root() / "executed")
    hostile = [
        lambda: one[:1].expand(10**6, 10**7), lambda: one[:1].expand(2**31, 2**31), lambda: torch.ones(5).as_strided(
            (3, 3), (1, 1)), lambda: torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (10**9, 10**9)),
        lambda: torch.eye(3).to_sparse_csr(), lambda: one.to(torch.complex64),
        lambda: torch.quantize_per_tensor(one, 0.1, 0, torch.qint8), lambda: torch.empty(10**6, 10**6, device="meta"),
        lambda: one * float("nan"), lambda: one / 0, lambda: one.long(), lambda: one.bool(), lambda: 5, lambda: "x",
        lambda: [one], lambda: torch.nested.nested_tensor([one]), lambda: torch.empty(0, 10**9),
        lambda: _Payload(open, marker, "w"), lambda: _Payload(os.system, f"touch {marker}"),
        lambda: _Payload(eval, f"open({marker!r}, 'w')"), lambda: _Payload(builtins.exec, f"open({marker!r}, 'w')"),
        lambda: _Payload(subprocess.call, ["touch", marker]), lambda: _Payload(bytearray, 10**12),
        lambda: _Payload(getattr, "x", "upper"), lambda: torch.nn.Linear(2, 3), lambda: [[]] * 10**6]
    value = draw.choice(hostile)()
    names = ["model.shared.weight"] * 3 + ["final_logits_bias", "x", 5]
    whole = draw.choice([{draw.choice(names): value}, value, {str(number): value for number in range(2000)},
                         {"a": one, "b": {"c": value}}])
    with suppress(RuntimeError):                                                # the old format has no nested tensors
        torch.save(whole, path, _use_new_zipfile_serialization=draw.random() < 0.6)
    change = draw.randrange(6)
    contents = bytearray(path.read_bytes())
    if change == 0:
        for _ in range(draw.choice([1, 5])):
            contents[draw.randrange(min(len(contents), 600))] = draw.randrange(256)
    elif change == 1:
        del contents[draw.randrange(len(contents)):]
    path.write_bytes(contents)
    if change == 2 and contents.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data + bytes(draw.choice([0, 10**8])) * name.endswith(".pkl"))


def _flip(draw: random.Random, path: Path) -> None:
    contents = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 20])):
        contents[draw.randrange(min(len(contents), draw.choice([300, len(contents)])))] ^= 1 << draw.randrange(8)
    path.write_bytes(contents)


def _damage_header(draw: random.Random, path: Path) -> None:
    contents = path.read_bytes()
    length = int.from_bytes(contents[:8], "little")
    header = json.loads(contents[8:8 + length])
    for name in draw.sample(sorted(header), min(3, len(header))):
        if isinstance(header[name], dict) and "shape" in header[name]:
            header[name][draw.choice(["shape", "data_offsets"])] = draw.choice([
                [], [0], [2**40, 2**40], [2**62] * 2, [-1, -4], [0, 10**12], [1] * 70, [0.5], None, "ab", [[1]]])
            if draw.random() < 0.3:
                header[name]["dtype"] = draw.choice(["F64", "F16", "BF16", "C64", "I8", "F8_E4M3", "", 5, None])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + contents[8 + length:])


def _field(number: int, contents: bytes) -> bytes:
    """Return a field of a protocol buffer that has a length."""
    size, length = len(contents), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + contents


def _hostile_sentencepiece(draw: random.Random) -> bytes:
    """Return a sentencepiece model with many pieces, long pieces, or damaged parts."""
    def piece(text: bytes, kind: int = 1) -> bytes:
        return _field(1, _field(1, text) + b"\x15\0\0\x80\xbf" + bytes([0x18, kind]))

    model = b"".join([piece(b"<unk>", 2), piece(b"<s>", 3), piece(b"</s>", 3),
                      *(piece(b"<0x%02X>" % byte, 6) for byte in range(256)), 
                      *map(piece, (b"a", b"b", b"\xe2\x96\x81"))])
    kind = draw.choice([1, 1, 3, 4, 5, 6, 9])
    use = draw.randrange(7)
    if use == 0:
        count = draw.choice([10**5, 10**6, 1_500_000])
        model += b"".join(piece(b"%07x" % number, kind) for number in range(count))
    elif use == 1:
        model += piece(draw.choice([b"a", b"\xe2\x96\x81", b"ab"]) * draw.choice([10**3, 10**6, 10**7]), kind)
    elif use == 2:
        model += b"".join(piece(b"a" * number, kind) for number in range(2, 3000))
    elif use == 3:
        model += draw.choice([b"\x0b", b"\x0a", b"\x13", b"\x12\x01", b"\x7a\0"]) * draw.choice([10, 10**6])
    elif use == 4:
        model += piece(draw.choice([b"\xff\xfe", b"\0", b"", b"a\nb", b"\x1b[2J", b">>de<<", b"a"]), kind)
    elif use == 5:
        model += _field(3, _field(2, draw.randbytes(draw.choice([10, 10**4, 10**6]))))
    trainer = _field(2, bytes([0x18, draw.choice([1, 2, 3, 4, 0]), 0x98, 2, 1]))
    model = bytearray(model + trainer + _field(3, _field(1, b"identity")))
    if use == 6:
        for _ in range(draw.choice([1, 10])):
            model[draw.randrange(len(model))] = draw.randrange(256)
    return bytes(model)


def tokenizers(draw: random.Random) -> Command:
    """Put a hostile tokenizer into a bundle."""
    path = bundle() / "tokenizer.model"
    use = draw.randrange(4)
    if use <= 1:
        path.write_bytes(_hostile_sentencepiece(draw))
    elif use == 2:
        count = draw.choice([10, 10**6, 5 * 10**6])
        path.write_bytes(b"seq2seq words %d\n" % draw.choice([count, 10**9, -1])
                         + draw.choice([b"a\n" * count, b"\n" * count, b"\xff\n" * 10, b"a" * count,
                                        "".join(f"{number}\n" for number in range(count)).encode()]))
    else:
        for name in ("source.model", "target.model"):
            shutil.copy(path, path.parent / name)
        path.unlink()
        ids = {f"p{number}": draw.choice([number, number, 0, -1, 10**20]) for number in range(draw.choice([5, 10**6]))}
        (path.parent / "vocabulary.json").write_text(json.dumps(draw.choice([
            {"joint": ids}, {"source": ids, "target": ids}, {"joint": []}, [], {"source": {}}, {"joint": {"a": [1]}}])))
        metadata = json.loads((path.parent / "metadata.json").read_text())
        del metadata["sha256"]["tokenizer.model"]
        metadata["sha256"] |= dict.fromkeys(("source.model", "target.model", "vocabulary.json"), "")
        (path.parent / "metadata.json").write_text(json.dumps(metadata))
    _sign(bundle())
    return draw.choice([translate(str(bundle())), [*check(f"tokenizer.taken_from={bundle()}")]])


def exports(draw: random.Random) -> Command:
    """Export over an earlier export that is damaged, or is not what it says."""
    kind = draw.choice(["huggingface", "ctranslate2", "argos"])
    output = Path("e.argosmodel" if kind == "argos" else "exported")
    if kind == "argos":
        use = draw.randrange(3)
        if use == 0:
            _make_special(draw, output)
        elif use == 1:
            output.write_bytes(draw.choice([b"PK\3\4", b"PK\5\6", b"PK\6\6"]) + draw.randbytes(100))
        else:
            with zipfile.ZipFile(output, "w") as package:
                for name in [draw.choice(["a/metadata.json", "../../secret", "a/" + "x" * 1000, "/etc/passwd"]),
                             "a/parity.json", *map(str, range(draw.choice([1, 30_000])))]:
                    package.writestr(name, "{}")
            if draw.random() < 0.5:
                _flip(draw, output)
    else:
        output.mkdir()
        (output / "parity.json").write_text(draw.choice(['{"files": 5}', '{"files": [[], {}, "README.md"]}', "[]", "{",
                                                         '{"files": ["parity.json", "../valid.en", "README.md"]}']))
        path = output / draw.choice(["README.md", "parity.json", "model.bin", "config.json", "other"])
        _make_special(draw, path)
    return ["export", "run", "--to", kind, "--output", str(output), "--source", "valid.en", "--lines", "2"]


def documents(draw: random.Random) -> Command:
    """Translate hostile documents of test_hostile_documents that have little text, some of them damaged, and hostile
    glossaries."""
    from test_hostile_documents import CASES

    format, make, size, _, _ = CASES[draw.choice(sorted(CASES))]
    path = Path(f"document.{format}")
    path.write_bytes(make(min(size, 100)))
    if path.stat().st_size and draw.random() < 0.5:
        _flip(draw, path)
    options = []
    if draw.random() < 0.15:
        terms = Path("terms.tsv")
        terms.write_text(draw.choice(["dog\tHund\n", "a\t" * 10**5, "dog\n" * 10**5, "\t\n", '"' * 10**5,
                                      "dog\0\tx\n"]))
        if draw.random() < 0.5:
            _make_special(draw, terms)
        options += ["--glossary", "terms.tsv"]
    return translate("run", str(path), "--document", format, "--output", f"translated.{format}",
                     "--beam-size", "1", *options)


KINDS: dict[str, Callable[[random.Random], Command]] = {
    kind.__name__: kind for kind in (special, names, bounds, nesting, escapes, flips, imports, tokenizers, exports,
                                     documents)}


# Running the commands


def contents_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*"))
            if not path.is_symlink() and path.is_file() and path.stat().st_size < 10**9}


def run_one(command: Command, directory: Path) -> tuple[int, str, str]:
    """Run the command in this process; returns its exit code, standard output and standard error, including output that
    is written directly to the file descriptors."""
    from seq2seq.cli import main

    saved = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, mode)) for path, mode in (
            (os.devnull, "rb"), (directory / "stdout", "wb"), (directory / "stderr", "wb"))]
        for descriptor, file in enumerate(files):
            os.dup2(file.fileno(), descriptor)
        try:
            code = main(command)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            for descriptor, before in enumerate(saved):
                os.dup2(before, descriptor)
                os.close(before)
    out, err = ((directory / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr"))
    return code, out, err


def faults(command: Command, code: int, out: str, err: str) -> list[str]:
    """Return the faults in the exit code and output of a command."""
    problems = []
    if code not in (0, 2):
        problems.append(f"exit code {code}")
    if "Traceback" in err or "bug in seq2seq" in err:
        problems.append("traceback")
    if code == 2 and not err.strip() and "error" not in out:
        problems.append("no message")
    if "Out of memory" in err:
        problems.append("memory")
    shown = err + (out if command[0] == "check" else "")
    if set(shown) & {"\x1b", "\x9b", "\x07", "\x08", "\x00", "\x7f", "\r"}:
        problems.append("control characters reach the terminal")
    return problems


def peak_bytes() -> int:
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("VmHWM")).split()[1]) * 1024


def main() -> None:
    valid, directory, chosen = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    kinds = list(KINDS) if chosen == "all" else [chosen]
    seed, count = map(int, sys.argv[4:6])
    import torch
    import typer

    from seq2seq import cli
    from seq2seq.translation.translator import Translator  # noqa: F401

    torch.set_num_threads(1)
    commands = typer.main.get_command(cli.application([]))
    cli.application = lambda words: commands
    before = contents_of(valid)
    copy = copy_of(valid)
    secret = copy.parent / "secret"
    secret.write_text(SECRET)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_BYTES, size + MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    codes: Counter[int] = Counter()
    failures, slowest, peak = [], 0.0, 0
    for number in range(count):
        os.chdir(directory)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(valid, copy)
        os.chdir(copy)
        kind = kinds[number % len(kinds)]
        draw = random.Random(f"{kind} {seed} {number}")
        command = KINDS[kind](draw)
        made = contents_of(copy)
        (directory / "input.json").write_text(json.dumps({"kind": kind, "number": number, "command": command}))
        Path("/proc/self/clear_refs").write_text("5")                           # reset the peak memory
        # An alarm would not end a command that has its own handler for it, or that hangs outside of Python.
        faulthandler.dump_traceback_later(5 * MAX_SECONDS, exit=True)
        began = time.process_time()
        code, out, err = run_one(command, directory)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        codes[code] += 1
        problems = faults(command, code, out, err)
        if seconds > MAX_SECONDS:
            problems.append(f"{seconds:.0f} seconds")
        peak = max(peak, peak_bytes())
        if peak_bytes() > MAX_BYTES:
            problems.append(f"{peak_bytes():,} bytes")
        after = contents_of(copy)
        output = command[command.index("--output") + 1] if "--output" in command else None
        lost = [name for name, content in made.items() if after.get(name) != content
                and not (code == 0 and output and Path(name).is_relative_to(Path(output)))]
        shown = [name for name in after.keys() - made.keys() if SECRET.encode() in after[name]]
        if shown or SECRET in out + err:
            problems.append(f"the secret is shown: {shown}")
        if (copy.parent / "executed").exists():
            problems.append("executed")
            (copy.parent / "executed").unlink()
        if lost:
            problems.append(f"lost or changed: {lost}")
        if problems:
            failures.append({"kind": kind, "number": number, "seed": seed, "command": [part[:200] for part in command],
                             "problems": problems, "output": (err + out)[-1500:]})
    if contents_of(valid) != before or secret.read_text() != SECRET:
        failures.append({"problems": ["the valid files changed"]})
    print(json.dumps({"inputs": count, "codes": codes, "failures": failures, "peak_bytes": peak,
                      "slowest_seconds": round(slowest, 2)}))
    sys.stdout.flush()
    os._exit(0)                                                                 # threads of FIFOs may still wait


if __name__ == "__main__":
    main()
