"""Files of models in Hugging Face format: download, and reading without executing code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.hub import hub_fault
from seq2seq.errors import FormatError
from seq2seq.files import NotJson, open_regular, parse_json, real_path, regular_bytes
from seq2seq.inference.load_model import as_tensors
from seq2seq.storage.tensor_files import read_weights as read_safetensors
from seq2seq.storage.tensor_files import require_finite

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SENTENCEPIECE, SENTENCEPIECE_OF_T5 = "sentencepiece.bpe.model", "spiece.model"
CARD = "README.md"
DOWNLOADED = [CARD, "*.json", SAFETENSORS, PICKLED, "model-*.safetensors", "pytorch_model-*.bin", SOURCE_MODEL,
              TARGET_MODEL, SENTENCEPIECE, SENTENCEPIECE_OF_T5]


def local_folder(name: str) -> Path:
    """Return the directory with this name, or download the model with this name from the hub."""
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise FormatError(f"there is no directory {name}. Name a directory that contains a {CONFIG}, or a model on the "
                          "Hugging Face hub, such as Helsinki-NLP/opus-mt-de-en.")
    try:
        import huggingface_hub
    except ImportError as error:
        raise FormatError("downloading from the Hugging Face hub needs huggingface_hub: "
                          "pip install huggingface_hub") from error
    if fault := hub_fault(f"models/{name}"):
        raise FormatError(f"there is no directory {name}, and the model {name} of the Hugging Face hub cannot be "
                          f"downloaded: {fault}")
    console.print_message(f"there is no directory {name}: downloading the model {name} from the Hugging Face hub")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=DOWNLOADED))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise FormatError(f"there is no directory {name}, and no such model can be downloaded from the Hugging Face "
                          "hub: "
                          f"{str(error).strip().splitlines()[0]}") from error


def read_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object. missing: value to return if there is no such file. If None, the file must exist."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(regular_bytes(path))
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}. A model in Hugging Face format has {CONFIG}, "
                          f"{SAFETENSORS} (or {PICKLED}), {VOCABULARY}, {SOURCE_MODEL} and {TARGET_MODEL}.") from error
    except NotJson as error:
        raise FormatError(f"{path} is not valid JSON: {error}. Copy it again.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} must contain a JSON object. Copy it again.")
    return value


def read_licence(folder: Path) -> str | None:
    """Return the licence in the header of a model card, such as cc-by-nc-4.0; None if there is none."""
    if not (folder / CARD).exists():
        return None
    text = regular_bytes(folder / CARD).decode(errors="replace").replace("\r\n", "\n")
    header = text.split("\n---", 1)[0] if text.startswith("---\n") else ""
    values = {key: value.strip(" \"'")[:200] for key, value in re.findall(
        r"^(license|license_name): *([^\r\n]*\S) *$", header, flags=re.MULTILINE) if value.isprintable()}
    licence = values.get("license") or None
    return values.get("license_name") or licence if licence == "other" else licence


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by name, in float32, from one file or from the files that an index names."""
    for name, read in ((SAFETENSORS, _read_safetensors), (PICKLED, _read_pickled)):
        if (folder / name).exists():
            return read(folder / name)
        if (index := folder / f"{name}.index.json").exists():
            return _read_parts(index, read)
    raise FormatError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}, nor an index of several such files.")


def _read_parts(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the weights of the files that an index names, all of which must be in its directory."""
    file_of = read_object(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(file, str) for file in file_of.values()):
        raise FormatError(f"{index} has no weight_map from names of weights to files. Copy it again.")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(file_of.values())):
        if Path(file).name != file:
            raise FormatError(f"{index} names the file {file}, which is not beside it. Such a file is not read.")
        if not (index.parent / file).exists():
            raise FormatError(f"{index.parent} lacks the file {file}, which {index.name} names. Copy it, too.")
        weights |= read(index.parent / file)
    if differing := sorted(weights.keys() ^ file_of.keys()):
        raise FormatError(f"{index} and the files that it names have different weights: {', '.join(differing[:3])}. "
                          "Copy all of them again.")
    return weights


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    return as_tensors(read_safetensors(real_path(path)))                        # a downloaded file is a link


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the weights that `torch.save` has written. Only tensors are unpickled, so no code in the file is executed.
    """
    try:
        with open_regular(path) as file:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        weights = {str(name): torch.as_tensor(tensor).detach().float().contiguous() for name, tensor in loaded.items()}
    except Exception as error:                  # torch's unpickler raises errors of any type for unexpected contents
        # torch's message advises to set weights_only=False, which would execute code in the file.
        raise FormatError(f"{path} contains something other than weights, or is damaged. Such a file can execute code, "
                          "so it was not loaded. Ask for the model as model.safetensors, or copy it again.") from error
    for name, weight in weights.items():
        require_finite(name, weight.numpy(), path)
    return weights
