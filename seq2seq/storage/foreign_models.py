"""Models in the formats of other programs, exports of seq2seq among them: what a path is that is not a bundle."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.files import NotJson, NotZip, open_regular, open_zip, parse_json, regular_bytes

TEXT_BYTES = 4096
"""Number of bytes at the beginning of a file that decide whether it is text."""
_OTHERS = {".onnx": "an ONNX model", ".npz": "a Marian model (.npz)", ".pt": "a PyTorch checkpoint of another toolkit",
           ".pth": "a PyTorch checkpoint of another toolkit", ".ckpt": "a PyTorch checkpoint of another toolkit",
           ".gguf": "a GGUF model", ".bin": "a file of weights of another library",
           ".safetensors": "a file of weights without its recipe and tokenizer"}
_IN_DIRECTORIES = (".npz", ".onnx", ".pt", ".pth", ".ckpt", ".gguf")
_TOKENIZERS = (".model", ".spm", ".vocab")
_RUN_IT = ("Run it with {library}, or name the seq2seq model that it was made from. `seq2seq evaluate --hypothesis "
           "FILE --reference FILE` scores its translations")
_IMPORT = "seq2seq imports Marian models of transformers: `seq2seq import --from huggingface PATH --output DIR`"


def foreign_model(path: Path) -> str | None:
    """Return a description of a model in the format of another program, or of another file that is not a model of
    seq2seq, and how to use it; None if the path is none of these. The description follows the word `is`."""
    return _file(path) if path.is_file() else _directory(path) if path.is_dir() else None


def _directory(path: Path) -> str | None:
    names = {entry.name for entry in path.iterdir()}
    suffixes = {Path(name).suffix for name in names}
    config, metadata = _json(path / "config.json"), _json(path / "metadata.json")
    if "from_code" in metadata and "to_code" in metadata:
        return f"an unpacked package for Argos Translate. {_RUN_IT.format(library='Argos Translate')}."
    if "model.bin" in names and any("vocabulary" in name for name in names):
        return f"a CTranslate2 model. {_RUN_IT.format(library='the library ctranslate2')}."
    if "model_type" in config or "architectures" in config:
        if config.get("model_type") == "marian":
            quoted = shlex.quote(str(path))
            return ("a Marian model of transformers. Import it with `seq2seq import --from huggingface "
                    f"{quoted} --output DIR`, run it with the library transformers, or name the seq2seq model that it "
                    "was made from.")
        return f"a model of transformers of the type {config.get('model_type', 'unknown')}. {_IMPORT}."
    if metadata.get("kind") == "tokenizer":
        return f"the tokenizer of a run. Name the run, {path.absolute().parent}."
    kind = next((_OTHERS[suffix] for suffix in _IN_DIRECTORIES if suffix in suffixes), None)
    return None if kind is None else f"a directory with {kind}, which seq2seq cannot run. {_IMPORT}."


def _file(path: Path) -> str | None:
    if _has_argos_metadata(path):
        return f"a package for Argos Translate. {_RUN_IT.format(library='Argos Translate or LibreTranslate')}."
    if path.suffix in _TOKENIZERS:
        return "a file of a tokenizer, which is a part of a model. Name the directory of the model."
    if path.suffix in _OTHERS:
        return f"{_OTHERS[path.suffix]}, which seq2seq cannot run. {_IMPORT}."
    with path.open("rb") as file:
        start = file.read(TEXT_BYTES)
    if b"\0" in start or path.suffix in (".yaml", ".yml"):
        return None
    return "a file of text. The model is the first argument: seq2seq COMMAND MODEL FILE."


def _has_argos_metadata(path: Path) -> bool:
    try:
        with open_regular(path) as file, open_zip(file) as archive:
            names = archive.namelist()
    except (OSError, NotZip):
        return False
    return any(name.count("/") == 1 and name.endswith("/metadata.json") for name in names) and any(
        "/model/" in name for name in names)


def _json(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one if the file is missing or contains anything else."""
    try:
        value = parse_json(regular_bytes(path))
    except (OSError, NotJson):
        return {}
    return value if isinstance(value, dict) else {}
