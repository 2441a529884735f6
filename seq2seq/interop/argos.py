"""Export models as packages of Argos Translate. LibreTranslate can use these packages, too.

A package is a zip file with one folder: metadata.json, a sentencepiece model for both languages, a CTranslate2 model,
README.md, and optionally a sentence splitter. Format: https://github.com/argosopentech/argos-translate, `package.py` of
version 1.11.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from seq2seq.errors import FormatError
from seq2seq.files import real_path
from seq2seq.interop.ctranslate2 import (
    CTRANSLATE2_DECODING_KEYS,
    MODEL_FILE,
    CTranslate2Model,
    convert,
    library,
    tolerance_of,
    unsupported_by_ctranslate2,
)
from seq2seq.interop.exporting import (
    REPORT,
    Exportable,
    Parity,
    compare,
    development_lines,
    read_exportable,
    require,
    write_card,
)
from seq2seq.languages import canonical, language_name
from seq2seq.recipe import DecodingSection
from seq2seq.storage.atomic import delete_temporary, make_directories, replace_file
from seq2seq.tokenizers.tokenizer import JOINT_FILE, Tokenizer, Tokenizers
from seq2seq.translation.translator import Translator

SUFFIX = ".argosmodel"
PACKAGE_VERSION = "1.0"
ARGOS_VERSION = "1.11"
"""Version of Argos Translate with which these packages were tested."""
TOKENIZER = "sentencepiece.model"
MODEL = "model"
METADATA = "metadata.json"
DECODING = DecodingSection(beam_size=4, length_penalty=0.2, min_length=1)
"""Search options of Argos Translate. It sets all of them except `min_length`, which has CTranslate2's default."""
# CTranslate2's default maximum lengths of a translation and of a source sentence, in pieces. Longer text is cut.
MAX_LENGTH, MAX_INPUT_LENGTH = 256, 1024
# Argos Translate's code for each code that `canonical` returns, if the two codes differ.
CODES = {"zh-Hans": "zh", "zh-Hant": "zt", "pt-BR": "pb"}
USAGE = """\
To install the package in Argos Translate, and translate with it:

```bash
argospm install {file}
argos-translate --from {source} --to {target} '...'
```

LibreTranslate serves the installed package, too. Compared with `seq2seq translate`:

{notes}"""
# Earliest time that a zip file can store.
TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ArgosExport:
    """Result of an export.

    parity: comparison with the original model. notes: sentences about what Argos Translate does differently.
    """

    parity: Parity
    notes: list[str]


def export_model(path: Path, output: Path, quantization: str = "int8", splitter: Path | None = None,
                 source: Path | None = None, max_lines: int = 500) -> ArgosExport:
    """Write a model as a package of Argos Translate. Before the file gets its final name, the package is compared with
    the original model. In this comparison, both use the search options of Argos Translate.

    Args:
        quantization: number format of the weights, one of `ctranslate2.QUANTIZATIONS`.
        splitter: sentence splitter to include: a directory with data of Stanza, or an .onnx model of MiniSBD.
        source: file of source lines for the comparison. If None, the recipe's validation set is used.
        max_lines: maximum number of lines to compare.
    """
    library()
    require_new_package(output)
    packed = list(splitter_files(splitter))
    exportable = read_exportable(path, "argos", CTRANSLATE2_DECODING_KEYS, unsupported_by_ctranslate2)
    require_joint_sentencepiece(exportable.tokenizers)
    if exportable.tokenizers.source.language_id(exportable.recipe.languages.target) is not None:
        raise FormatError("each of its sources begins with a language token, which Argos Translate does not add. "
                          "Export it to ctranslate2 or huggingface.")
    if exportable.recipe.data.context:
        raise FormatError("it reads preceding sentences (data.context), and Argos Translate translates each sentence "
                          "alone. Export it to ctranslate2.")
    lines = development_lines(exportable.recipe, source, max_lines)
    languages = exportable.recipe.languages
    codes = [argos_code(code or "") for code in (languages.source, languages.target)]
    folder = f"translate-{codes[0]}_{codes[1]}-{PACKAGE_VERSION.replace('.', '_')}"
    ours = replace(Translator.load(path, "cpu", "fp32"), decoding=DECODING)
    notes = differences_of_argos(exportable, splitter, quantization)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "package"
        convert(exportable.model, exportable.section, exportable.tokenizers, directory / MODEL, quantization,
                exportable.aligner)
        (directory / TOKENIZER).write_bytes(exportable.tokenizers.source.model)
        metadata = {"package_version": PACKAGE_VERSION, "argos_version": ARGOS_VERSION, "from_code": codes[0],
                    "from_name": language_name(canonical(codes[0])), "to_code": codes[1],
                    "to_name": language_name(canonical(codes[1]))}
        (directory / METADATA).write_text(json.dumps(metadata, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        weights = directory / MODEL / MODEL_FILE
        write_card(directory, path, exportable, "argostranslate", usage(codes, output.name, notes), weights,
                   quantization)
        for name, file in packed:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, directory / name)
        parity = compare(ours, open_package(directory, exportable), lines)
        tolerance = tolerance_of(quantization)
        require(parity, tolerance, f"the package for Argos Translate ({quantization})")
        report = {**asdict(parity), "tolerance": asdict(tolerance)}
        (directory / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as package:
            for file in sorted(file for file in directory.rglob("*") if file.is_file()):
                # A fixed time and fixed permissions, so that the same model gives the same bytes.
                entry = zipfile.ZipInfo(f"{folder}/{file.relative_to(directory).as_posix()}", TIME)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                package.writestr(entry, file.read_bytes())
        try:
            make_directories(output.parent)
            delete_temporary(output.parent, output.name)
            replace_file(output, archive.getvalue())
        except OSError as error:
            raise FormatError(f"{output} cannot be written: {error.strerror}. Name another file.") from error
    return ArgosExport(parity, notes)


def require_new_package(output: Path) -> None:
    """Raise FormatError unless the output is new and has the suffix of packages."""
    if output.suffix != SUFFIX:
        raise FormatError(f"{output}: a package of Argos Translate needs a name that ends in {SUFFIX}.")
    if output.exists():
        raise FormatError(f"{output} exists already. Name a new file.")


def require_joint_sentencepiece(tokenizers: Tokenizers) -> None:
    """Raise FormatError unless both languages have the same sentencepiece model."""
    source, target = tokenizers.source, tokenizers.target
    if not isinstance(source, Tokenizer) or not isinstance(target, Tokenizer):
        raise FormatError("a package of Argos Translate needs a sentencepiece model trained by seq2seq; this model has "
                          "another vocabulary. Export to ctranslate2.")
    if source.model != target.model:
        raise FormatError("a package of Argos Translate has one sentencepiece model for both languages, but this model "
                          "has two (tokenizer.joint: false). Export to ctranslate2.")


def splitter_files(splitter: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the files of a sentence splitter, each with its name in the package."""
    if splitter is None:
        return
    if splitter.is_file() and splitter.suffix == ".onnx":
        yield f"minisbd/{splitter.name}", splitter
        return
    if not (splitter / "resources.json").is_file():
        raise FormatError(f"--splitter {splitter} is neither an .onnx file of MiniSBD nor a directory of Stanza with a "
                          "resources.json.")
    for file in sorted(splitter.rglob("*")):
        if file.is_file() and real_path(file).is_relative_to(real_path(splitter)):
            yield f"stanza/{file.relative_to(splitter).as_posix()}", file


def argos_code(code: str) -> str:
    """Return Argos Translate's code of a language: zh for zho and zh-CN, zt for zh-TW, pb for pt-BR, de for deu."""
    return CODES.get(canonical(code), canonical(code))


def differences_of_argos(exportable: Exportable, splitter: Path | None, quantization: str) -> list[str]:
    """Return sentences about what Argos Translate does differently from `seq2seq translate` with this model."""
    positions = exportable.recipe.model.max_positions
    notes = [exportable.note] if exportable.note else []
    notes.append(f"Argos Translate searches with a beam of {DECODING.beam_size}, a length penalty of "
                 f"{DECODING.length_penalty} and a minimum length of {DECODING.min_length}, and does not retry faulty "
                 f"translations. A translation of a sentence has at most {MAX_LENGTH} pieces.")
    if positions < MAX_INPUT_LENGTH:
        notes.append(f"A sentence of more than {positions - 1:,} pieces is an error in Argos Translate; seq2seq splits "
                     "it.")
    else:
        notes.append(f"A sentence of more than {MAX_INPUT_LENGTH - 1:,} pieces is cut by Argos Translate; seq2seq "
                     "splits it.")
    notes.append("Argos Translate replaces _ in translations by a space, and prints byte pieces such as <0xE4> as they "
                 "are. The model generates byte pieces for characters that are not in its vocabulary.")
    if quantization.startswith("int8"):
        notes.append("On AMD processors without VNNI instructions (before Zen 4), set ARGOS_COMPUTE_TYPE=float32: with "
                     "int8, CTranslate2 has 4 to 7 times the usual rounding error there (measured on a Zen 3).")
    if splitter is None:
        notes.append("The package has no sentence splitter: Argos Translate downloads one when it first translates. To "
                     "work without a network, pack one with --splitter.")
    elif splitter.is_dir():
        notes.append("LibreTranslate ignores splitters of Stanza; for LibreTranslate, pack an .onnx file of MiniSBD.")
    return notes


def usage(codes: list[str], output: str, notes: list[str]) -> str:
    """Return instructions to use a package, and what Argos Translate does differently, as Markdown."""
    listed = "\n".join(f"- {note}" for note in notes)
    return USAGE.format(file=output, source=codes[0], target=codes[1], notes=listed)


def open_package(folder: Path, exportable: Exportable) -> CTranslate2Model:
    tokenizers = Tokenizers.from_files({JOINT_FILE: (folder / TOKENIZER).read_bytes()}, str(folder))
    return CTranslate2Model(folder / MODEL, tokenizers, exportable.recipe, suppress=False)
