"""Glossaries that clients send over DeepL's interface, in a directory. Each client sees only its own glossaries."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import unicodedata
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seq2seq.data.glossary import Glossary, Term
from seq2seq.errors import UserError
from seq2seq.files import NotJson, parse_json, regular_bytes
from seq2seq.formats.block import DocumentError
from seq2seq.formats.tables import read_rows
from seq2seq.languages import canonical
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.storage.atomic import delete_temporary, make_directories, open_without_links, replace_file
from seq2seq.storage.locks import LOCK, lock_if_free

MAX_TEXT_BYTES = 1024
"""Maximum size of a name, of a term and of its translation, as in DeepL's interface."""
MAX_ENTRIES = 20_000
"""Maximum number of terms of a dictionary. Loaded, a term takes about 1 kB of memory."""
MAX_ALIKE = 500
"""Maximum number of words in a dictionary that have a stem in common (see `Glossary.alike`). The model thread compares
all of them with a word of a text, in 3 µs each."""
CLIENT_GLOSSARIES, CLIENT_BYTES = 1_000, 20 * 2**20
"""Maximum number of a client's glossaries, as in DeepL's interface, and maximum size of their files together."""
MAX_GLOSSARIES, MAX_BYTES = 10_000, 200 * 2**20
"""Maximum number of all glossaries, and maximum size of their files together."""
FILE_BYTES = 4096
"""Size that each glossary and each dictionary counts, in addition to its terms."""
LOADED_ENTRIES = 60_000
"""Number of terms of loaded dictionaries above which the longest unused dictionaries are dropped."""
Languages = tuple[str, str]
Entries = Mapping[str, str]


@dataclass(frozen=True)
class Dictionary:
    """Terms for one direction. source_lang, target_lang: codes without script and region (`base_language`). file: name
    of the file, which has a term, a tab and the translation in each line. bytes: size of this file."""

    source_lang: str
    target_lang: str
    entry_count: int
    file: str
    bytes: int

    @property
    def languages(self) -> Languages:
        """Source and target language."""
        return self.source_lang, self.target_lang


@dataclass(frozen=True)
class ClientGlossary:
    """Glossary of a client. owner: name of the client as a hash, because it can contain an API key. creation_time: in
    ISO 8601."""

    glossary_id: str
    owner: str
    name: str
    creation_time: str
    dictionaries: tuple[Dictionary, ...]

    @property
    def size(self) -> int:
        """Number of bytes that the glossary takes on the disk."""
        return FILE_BYTES + sum(one.bytes + FILE_BYTES for one in self.dictionaries)

    def dictionary(self, languages: Languages) -> Dictionary | None:
        """Return the dictionary for a source and a target language."""
        return next((one for one in self.dictionaries if one.languages == languages), None)


Change = Callable[[ClientGlossary], Mapping[Languages, Entries | None]]
"""Function that gets a glossary, and returns the new entries of its dictionaries to replace; None: one to delete."""


class GlossaryStore:
    """Glossaries of clients. No name from a client becomes a path. Several threads can use the store.

    Each glossary has a file ID.json, and a file for each of its dictionaries, whose name is new whenever the dictionary
    changes. Replacing ID.json is what changes a glossary, so that after a crash it is either the old or the new one.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """directory: directory of the files; None: the server stores no glossaries."""
        self._directory, self._lock = directory, threading.RLock()
        self._glossaries: dict[str, ClientGlossary] = {}
        self._loaded: OrderedDict[tuple[Dictionary, Languages], Glossary] = OrderedDict()
        if directory is not None:
            self._open(directory)

    @property
    def accepts(self) -> bool:
        """True if the server stores glossaries."""
        return self._directory is not None

    def _open(self, directory: Path) -> None:
        try:
            make_directories(directory)
            self._locked = open_without_links(str(directory / LOCK), os.O_RDWR | os.O_CREAT)
            if not lock_if_free(self._locked):
                raise UserError(f"{directory} is in use by another server. Choose another --glossary-directory.")
            delete_temporary(directory)
            for path in sorted(directory.glob("*.json")):
                glossary = _read(path)
                self._glossaries[glossary.glossary_id] = glossary
            known = {dictionary.file for one in self._glossaries.values() for dictionary in one.dictionaries}
            for path in directory.glob("*.tsv"):
                if path.name not in known and re.fullmatch(r"[0-9a-f]{32}\.tsv", path.name):
                    path.unlink()                                               # of a change that a crash interrupted
        except OSError as error:
            raise UserError(f"{error.filename or directory} cannot be used: {error.strerror}. Choose another "
                            "--glossary-directory.") from error

    def close(self) -> None:
        """Let another server use the directory."""
        if self._directory is not None:
            os.close(self._locked)
            self._directory = None

    def of(self, client: str) -> list[ClientGlossary]:
        with self._lock:
            return [one for one in self._glossaries.values() if one.owner == _owner(client)]

    def get(self, client: str, glossary_id: str) -> ClientGlossary:
        """Return a glossary of a client. Raises ApiError if it has no such glossary."""
        with self._lock:
            found = self._glossaries.get(glossary_id)
        if found is None or found.owner != _owner(client):
            raise ApiError(404, "There is no such glossary")
        return found

    def create(self, client: str, name: str, dictionaries: Mapping[Languages, Entries]) -> ClientGlossary:
        """Store a new glossary.

        Raises:
            ApiError: the server stores no glossaries, there is no room for it, or it is not valid.
        """
        created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        new = ClientGlossary(str(uuid.uuid4()), _owner(client), _checked_name(name), created, ())
        return self._change(lambda: new, lambda old: dictionaries)

    def update(self, client: str, glossary_id: str, change: Change, name: str | None = None) -> ClientGlossary:
        """Change a glossary.

        Args:
            change: see `Change`. It gets the old glossary. name: new name; None: the name stays.
        Raises:
            ApiError: see `create`, or the client has no such glossary.
        """
        def found() -> ClientGlossary:
            old = self.get(client, glossary_id)
            return old if name is None else replace(old, name=_checked_name(name))

        return self._change(found, change)

    def _change(self, find: Callable[[], ClientGlossary], change: Change) -> ClientGlossary:
        with self._lock:
            directory = self._require_directory()
            base = find()
            before = self._glossaries.get(base.glossary_id)
            dictionaries, texts = {one.languages: one for one in base.dictionaries}, {}
            for languages, entries in change(base).items():
                if entries is None:
                    if dictionaries.pop(languages, None) is None:
                        raise ApiError(404, "The glossary has no such dictionary")
                    continue
                _require_small(entries, languages)
                text = "".join(f"{source}\t{target}\n" for source, target in entries.items()).encode()
                file = f"{uuid.uuid4().hex}.tsv"
                texts[file] = text
                dictionaries[languages] = Dictionary(*languages, len(entries), file, len(text))
            new = replace(base, dictionaries=tuple(dictionaries.values()))
            self._require_room(before, new)
            try:
                for file, text in texts.items():
                    replace_file(directory / file, text)
                record = json.dumps(asdict(new), ensure_ascii=False)
                replace_file(directory / f"{new.glossary_id}.json", record.encode())
            except OSError as error:
                self._unlink(texts)
                raise ApiError(503, f"The glossary cannot be stored: {error.strerror}") from error
            self._glossaries[new.glossary_id] = new
            kept = {one.file for one in new.dictionaries}
            self._unlink(one.file for one in (before.dictionaries if before else ()) if one.file not in kept)
            return new

    def delete(self, client: str, glossary_id: str) -> None:
        """Delete a glossary. Raises ApiError if the client has no such glossary."""
        with self._lock:
            found = self.get(client, glossary_id)
            self._unlink([f"{found.glossary_id}.json", *(one.file for one in found.dictionaries)])
            del self._glossaries[glossary_id]

    def entries(self, dictionary: Dictionary) -> dict[str, str]:
        """Return the entries of a dictionary. Raises ApiError if it was changed or deleted in the meantime."""
        try:
            with self._lock:
                text = regular_bytes(self._require_directory() / dictionary.file).decode()
        except OSError as error:
            raise ApiError(404, "The glossary was changed or deleted") from error
        lines = (line.partition("\t") for line in text.split("\n")[:-1])
        return {source: target for source, _, target in lines}

    def terms(self, dictionary: Dictionary, languages: Languages) -> Glossary:
        """Return the terms of a dictionary for a direction of a model. languages: source and target language."""
        key = dictionary, languages
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _glossary(self.entries(dictionary), languages)
            self._loaded.move_to_end(key)
            while len(self._loaded) > 1 and sum(one.entry_count for one, _ in self._loaded) > LOADED_ENTRIES:
                self._loaded.popitem(last=False)
            return self._loaded[key]

    def _require_directory(self) -> Path:
        if self._directory is None:
            raise ApiError(403, "This server does not store glossaries. Its operator can start it with "
                                "--glossary-directory")
        return self._directory

    def _require_room(self, before: ClientGlossary | None, new: ClientGlossary) -> None:
        """Raise ApiError if there is no room for a glossary. before: glossary that it replaces."""
        others = [one for one in self._glossaries.values() if one is not before]
        own = [one for one in others if one.owner == new.owner]
        if len(own) >= CLIENT_GLOSSARIES or sum(one.size for one in own) + new.size > CLIENT_BYTES:
            raise ApiError(456, f"A client may have {CLIENT_GLOSSARIES:,} glossaries, of {CLIENT_BYTES:,} bytes "
                                "together. Delete some")
        if len(others) >= MAX_GLOSSARIES or sum(one.size for one in others) + new.size > MAX_BYTES:
            raise ApiError(456, "The server has no room for more glossaries")

    def _unlink(self, files: Iterable[str]) -> None:
        directory = self._require_directory()
        for file in files:
            (directory / file).unlink(missing_ok=True)


def parse_entries(text: str, format: str, languages: Languages) -> dict[str, str]:
    """Parse entries as DeepL's interface defines them: a term and its translation in each line.

    Args:
        format: tsv or csv. A line of CSV may have two more fields, the languages.
    Raises:
        ApiError: a line is not an entry, a term is there twice, or there are no entries.
    """
    if format not in ("tsv", "csv"):
        raise invalid(f"entries_format {format[:30]} is not supported, only tsv and csv")
    has_quotes = format == "csv"
    rows = read_rows(text.removeprefix("\ufeff"), "," if has_quotes else "\t", has_quotes)
    entries: dict[str, str] = {}
    try:
        for line, row in rows:
            cells = [cell.text.strip() for cell in row]
            if not any(cells):
                continue
            place = f"entries, line {line}"
            if len(cells) != 2 and not (format == "csv" and len(cells) == 4):
                raise invalid(f"{place}: {len(cells)} fields. Expected a term and its translation")
            if len(cells) == 4 and tuple(map(base_language, cells[2:])) != languages:
                raise invalid(f"{place}: the languages are not those of the glossary")
            for cell in cells[:2]:
                _require_text(cell, place)
            if cells[0] in entries:
                raise invalid(f"{place}: the term '{cells[0][:60]}' is there twice")
            entries[cells[0]] = cells[1]
    except DocumentError as error:
        raise invalid(f"entries, {error}".removesuffix(".")) from None
    if not entries:
        raise invalid("there are no entries")
    return entries


def base_language(code: str) -> str:
    """Return the code of a language without script and region. Glossaries apply to all variants of a language."""
    return canonical(code).split("-")[0]


def _require_text(cell: str, place: str) -> None:
    if not cell:
        raise invalid(f"{place}: an empty field")
    if len(cell.encode()) > MAX_TEXT_BYTES:
        raise invalid(f"{place}: a field of more than {MAX_TEXT_BYTES:,} bytes")
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in cell):
        raise invalid(f"{place}: a control character or line separator")


def _checked_name(name: str) -> str:
    _require_text(name, "name")
    return name


def _require_small(entries: Entries, languages: Languages) -> None:
    if len(entries) > MAX_ENTRIES:
        raise ApiError(413, f"A dictionary may have {MAX_ENTRIES:,} entries")
    if _glossary(entries, languages).alike > MAX_ALIKE:
        raise ApiError(413, f"More than {MAX_ALIKE:,} words of the terms have the same stem")


def _glossary(entries: Entries, languages: Languages) -> Glossary:
    return Glossary([Term(source, (target,)) for source, target in entries.items()], *languages)


def _owner(client: str) -> str:
    return hashlib.sha256(client.encode()).hexdigest()[:32]


def _read(path: Path) -> ClientGlossary:
    try:
        value: dict[str, Any] = parse_json(regular_bytes(path))
        dictionaries = tuple(Dictionary(**one) for one in value.pop("dictionaries"))
        return ClientGlossary(**value, dictionaries=dictionaries)
    except (NotJson, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}. Delete it, or restore it from a backup.") from error
