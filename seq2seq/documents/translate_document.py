"""Translation of a document: all sentences are translated in one call, and equal sentences only once."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from seq2seq import console
from seq2seq.documents.block import MAX_BYTES, require_size
from seq2seq.documents.glossary import Glossary
from seq2seq.documents.placeholders import Placeholders
from seq2seq.documents.protected_translation import ProtectedTranslator
from seq2seq.documents.registry import SUFFIXES, format_of, parse
from seq2seq.documents.translation import Align, DividedDocument
from seq2seq.errors import CorpusError, UserError
from seq2seq.files import COMPRESSED_SUFFIXES
from seq2seq.recipe import DecodingOptions, Recipe, load_recipe
from seq2seq.storage.checkpoints import RECIPE, resolve_model_path
from seq2seq.training.alignment_head import measured_aligner
from seq2seq.translation.attention_maps import unit_weights
from seq2seq.translation.text_io import Input
from seq2seq.translation.translator import ReportProgress, Translator
from seq2seq.translation.worker_processes import TranslatorPool

OTHER_SUFFIXES = frozenset([".pdf", ".doc", ".xls", ".xlsx", ".ppt", ".epub", ".rtf", ".mobi"])
"""Endings of documents in formats that are not read. Their bytes are not lines of text."""


class DocumentTranslation:
    """Document in which equal sentences are translated once, unless the model uses context (`data.context`).

    sentences: texts to translate, without line feeds. places: place of the first occurrence of each sentence, such as
    `line 12`.
    """

    def __init__(self, data: bytes, format: str, name: str, recipe: Recipe) -> None:
        """Parse a document. name: name of the document in messages.

        Raises:
            DocumentError: the document is malformed or too large; the message has its name and the place.
        """
        self.name = name
        source, self.target_language = recipe.languages.pair
        self._document = DividedDocument(parse(data, format, name, source, self.target_language))
        sentences = self._document.sentences
        # Without context, equal sentences have equal translations.
        first = dict(zip(reversed(sentences), reversed(range(len(sentences))), strict=True))
        self._indices = [number if recipe.data.context else first[text] for number, text in enumerate(sentences)]
        different = list(dict.fromkeys(self._indices))
        self.sentences = [sentences[index] for index in different]
        self.places = [self._document.places[index] for index in different]

    @property
    def lines(self) -> Input:
        """The sentences as an input of lines."""
        text = "".join(f"{sentence}\n" for sentence in self.sentences).encode("utf-8", "replace")
        return Input(io.BytesIO(text), self.name, len(self.sentences), max_line_bytes=len(text) + 1)

    def join(self, translations: Sequence[str], align: Align | None) -> bytes:
        """Return the translated document; see `DividedDocument.join`. translations: one for each of `sentences`."""
        by_index = dict(zip(dict.fromkeys(self._indices), translations, strict=True))
        return self._document.join([by_index[index] for index in self._indices], self.target_language, align)


def read_document(path: Path | None) -> bytes:
    """Return the contents of a file, or of standard input if the path is None.

    Raises:
        CorpusError: the file cannot be read.
        DocumentError: the file is too large.
    """
    try:
        if path is None:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}. Check its name and permissions.") from error
    require_size(data)
    return data


def input_format(path: Path | None, format: str | None) -> str | None:
    """Return the format of an input of the command line, or None if it is lines of text.

    format: value of --document: `lines` if the input is lines of text; None if the file's name decides the format.

    Raises:
        UserError: according to its name, the file is a compressed document, or a document of another format.
    """
    if format is None and path is not None:
        if path.suffix.lower() in OTHER_SUFFIXES or path.suffix in COMPRESSED_SUFFIXES and format_of(path.stem):
            raise UserError(f"{path}: {path.suffix} documents cannot be translated. Convert or decompress it to one of "
                            f"{' '.join(SUFFIXES)}, or add --document lines if each line of the file is a sentence.")
        if format := format_of(path.name):
            console.print_message(f"{path} is translated as {format}; with --document lines, each line is a sentence")
    return None if format == "lines" else format


def model_recipe(model: Path, target_language: str | None = None) -> Recipe:
    """Return the recipe of a model for a target language (see `Recipe.into`). model: path of a bundle, of a run, whose
    best bundle is used."""
    return load_recipe(resolve_model_path(model) / RECIPE, check_files=False).into(target_language)


def protected(translator: Translator | TranslatorPool, model: Path, recipe: Recipe, glossary: Path | None = None,
              placeholders: Sequence[str] = ()) -> ProtectedTranslator:
    """Return a translator that keeps placeholders and terms.

    Args:
        model: path of the translator's model. If worker processes translate, this process also loads the model when a
            sentence has to be aligned.
        glossary: path of a glossary; see `Glossary.read`. placeholders: regular expressions of further placeholders.
    Raises:
        UserError: the glossary or a placeholder is invalid.
    """
    loaded = translator.shared if isinstance(translator, TranslatorPool) else translator

    def align(pairs: Sequence[tuple[str, str]]) -> Sequence[np.ndarray | None]:
        nonlocal loaded
        loaded = loaded or Translator.load(model, str(translator.device), translator.precision,
                                           target_language=recipe.languages.target)
        return unit_weights(loaded, pairs, measured_aligner(model))

    return ProtectedTranslator(
        translator, Placeholders(placeholders),
        None if glossary is None else Glossary.read(glossary, *recipe.languages.pair),
        recipe.data.augmentation.terms > 0, align)


def translate_document(translator: Translator, document: Path | bytes, format: str | None = None, *,
                       name: str = "the document", glossary: Path | None = None, placeholders: Sequence[str] = (),
                       progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]) -> bytes:
    """Translate a document; see `Translator.translate_document`."""
    if translator.directory is None:
        raise UserError("this translator was not loaded from a file. Use Translator.load to translate documents.")
    path = Path(name) if isinstance(document, bytes) else Path(document)
    format = format or format_of(path.name)
    if format is None:
        raise UserError(f"the name of {path} does not tell its format. Give the format, or one of the endings "
                        f"{' '.join(SUFFIXES)}.")
    recipe = model_recipe(translator.directory).model_copy(update={"languages": translator.languages})
    data = document if isinstance(document, bytes) else read_document(path)
    parsed = DocumentTranslation(data, format, str(path), recipe)
    translate = protected(translator, translator.directory, recipe, glossary, placeholders)
    n_best = translate.translate(parsed.sentences, progress=progress, **decoding)
    return parsed.join([best.text for best, *_ in n_best], translate.align)
