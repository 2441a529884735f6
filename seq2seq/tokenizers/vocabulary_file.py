"""vocabulary.json: the ids of the pieces of an imported model."""

from __future__ import annotations

import json
from typing import Any

from seq2seq.errors import TokenizerError
from seq2seq.files import parse_json
from seq2seq.tokenizers.fairseq_vocabulary import FairseqVocabulary
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary

VOCABULARY_FILE = "vocabulary.json"


def vocabulary_json(source: MarianVocabulary, target: MarianVocabulary) -> bytes:
    """Return the contents of vocabulary.json: the ids of the pieces of each language, or of both if they share ids, and
    the key `begins_with_own_language` if it is true."""
    ids: dict[str, Any] = ({"joint": source.ids} if source.ids == target.ids else
                           {"source": source.ids, "target": target.ids})
    if source.begins_with_own_language:
        ids["begins_with_own_language"] = True
    return json.dumps(ids, indent=1, ensure_ascii=False).encode()


def read_vocabularies(contents: bytes, models: tuple[bytes, bytes], where: str
                      ) -> tuple[MarianVocabulary, MarianVocabulary]:
    """Return source and target vocabulary from the contents of vocabulary.json and both sentencepiece models."""
    try:
        saved = parse_json(contents)
        source, target = (saved["joint"],) * 2 if "joint" in saved else (saved["source"], saved["target"])
        if not all(isinstance(index, int) for ids in (source, target) for index in ids.values()):
            raise ValueError
        if saved.get("begins_with_own_language") is True:
            return (FairseqVocabulary(models[0], source, where),
                    FairseqVocabulary(models[1], target, where, is_target=True))
        return MarianVocabulary(models[0], source, where), MarianVocabulary(models[1], target, where)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{where}/{VOCABULARY_FILE} is damaged. Copy the file again, or import the model "
                             "again.") from error
