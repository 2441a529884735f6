"""Translation of a document: all sentences are translated in one call, and equal sentences only once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from seq2seq.data.glossary import Glossary
from seq2seq.documents.divided_document import DividedDocument
from seq2seq.errors import CorpusError, UserError
from seq2seq.formats.block import MAX_BYTES, NO_KEYS, KeyNames, naming, require_size
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.registry import SUFFIXES, format_of, parse
from seq2seq.languages import canonical
from seq2seq.recipe import DecodingOptions, Languages, Recipe
from seq2seq.storage.checkpoints import resolve_model_path, stored_recipe
from seq2seq.tokenizers.source import Source
from seq2seq.translation.text_io import LineWarnings, UnseenCharacters
from seq2seq.translation.translation import ReportProgress
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool


def translate_document(translator: Translator | TranslatorPool, document: Path | str | bytes,
                       format: str | None = None, *, name: str = "the document", glossary: Path | None = None,
                       placeholders: Sequence[str] = (), tag: str | None = None,
                       keys: KeyNames = NO_KEYS, progress: ReportProgress | None = None,
                       **decoding: Unpack[DecodingOptions]) -> bytes:
    """Translate a document, and return the result as bytes. Everything except the text stays as it is.

    Args:
        document: path of the document, or its contents.
        format: name in `registry.FORMATS`; None: the format that the name of the document implies.
        name: name of a document that is given as contents, for messages and for the format.
        glossary: path of a glossary; see `Glossary.read`. placeholders: regular expressions of further placeholders. A
            translator that has a glossary or placeholders already keeps those without these arguments.
        keys: keys of JSON and YAML whose strings are text, or stay.
        tag, progress, decoding: see `Translator.translate`.
    """
    path = Path(name) if isinstance(document, bytes) else Path(document)
    data = document if isinstance(document, bytes) else read_document(path)
    format = format or format_of(path.name, data)
    if format is None:
        raise UserError(f"the name of {path} does not tell its format. Give the format, or one of the endings "
                        f"{' '.join(SUFFIXES)}.")
    languages, named = translator.languages, languages_in_documents(translator.languages)
    kept = Placeholders(placeholders) if placeholders else translator.placeholders or Placeholders()
    terms = None if glossary is None else Glossary.read(glossary, *languages.pair)
    translator = translator.protecting(kept, terms)
    divided = divide_document(data, format, str(path), named, translator.reader.context, kept, keys)
    sentences = [document_sentence(sentence, languages) for sentence in divided.sentences]
    n_best = translator.translate(sentences, tag=tag, progress=progress, **decoding)
    warnings, unseen = LineWarnings(str(path), "translations have faults"), UnseenCharacters(str(path))
    for place, (best, *_) in zip(divided.places, n_best, strict=True):
        unseen.add(place, best.unseen)
        if best.faults:
            warnings.warn(place, ", ".join(best.faults))
    with naming(str(path)):
        joined = divided.join([best.text for best, *_ in n_best], named.target, translator.align, warnings.warn)
    warnings.finish()
    unseen.finish()
    return joined


def languages_in_documents(languages: Languages, source: str | None = None, target: str | None = None) -> Languages:
    """Return the languages with the codes by which documents name them, those of BCP 47, which contain no `_`. For a
    model's own `deu_Latn`, the code is the one that the user gave, or else `de`."""
    codes = [(given or canonical(code)) if code and "_" in code else code
             for given, code in ((source, languages.source), (target, languages.target))]
    return languages.model_copy(update={"source": codes[0], "target": codes[1]})


def document_sentence(text: str, languages: Languages) -> Source:
    """Return a sentence of a document as a source. A language token or tag at its beginning is text."""
    return Source(text, language=languages.target, tag="")


def divide_document(data: bytes, format: str, name: str, languages: Languages, context: int,
                    placeholders: Placeholders, keys: KeyNames = NO_KEYS) -> DividedDocument:
    """Parse a document and divide it into sentences. Arguments and errors: see `registry.parse`.

    context: `data.context` of the model. Without context, equal sentences have equal translations. placeholders: those
    that the document must keep. keys: see `translate_document`.
    """
    parsed = parse(data, format, name, *languages.pair, keys)
    with naming(name):
        return DividedDocument(parsed, once=not context, placeholders=placeholders)


def model_recipe(model: Path, target_language: str | None = None, source_language: str | None = None) -> Recipe:
    """Return the recipe of a model for a direction (see `Recipe.into`). model: path of a bundle, of a run, whose best
    bundle is used."""
    return stored_recipe(resolve_model_path(model)).into(target_language, source_language)


def read_document(path: Path | None) -> bytes:
    """Return the contents of a file, or of standard input if the path is None."""
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
