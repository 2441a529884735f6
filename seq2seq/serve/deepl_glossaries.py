"""Glossaries that clients send over DeepL's interface, in an SQLite file. Each client sees only its own glossaries."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import unicodedata
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from seq2seq.data.glossary import Glossary, Term
from seq2seq.errors import UserError
from seq2seq.files import parse_json
from seq2seq.formats.block import DocumentError
from seq2seq.formats.tables import read_rows
from seq2seq.languages import canonical
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.storage.atomic import make_directories

FILE = "glossaries.sqlite"
"""Name of the file in the directory of the glossaries."""
WAIT_SECONDS = 30
"""Maximum time that a change waits for another one. A large dictionary with lemmatizers that are not loaded yet takes
some seconds."""
MAX_TEXT_BYTES = 1024
"""Maximum size of a name, of a term and of its translation, as in DeepL's interface."""
MAX_ENTRIES = 20_000
"""Maximum number of terms of a dictionary. Loaded, a term takes about 1 kB of memory."""
MAX_ALIKE = 500
"""Maximum number of words in a dictionary that have a stem in common (see `Glossary.alike`). The model thread compares
all of them with a word of a text, in 3 µs each."""
CLIENT_GLOSSARIES, CLIENT_BYTES = 1_000, 20 * 2**20
"""Maximum number of a client's glossaries, as in DeepL's interface, and maximum size of them together."""
MAX_GLOSSARIES, MAX_BYTES = 10_000, 200 * 2**20
"""Maximum number of all glossaries, and maximum size of them together."""
RECORD_BYTES = 4096
"""Size that each glossary and each dictionary counts, in addition to its terms."""
LOADED_ENTRIES = 60_000
"""Number of terms of loaded dictionaries above which the longest unused dictionaries are dropped."""
Languages = tuple[str, str]
Entries = Mapping[str, str]

# owner: name of the client as a hash, because it can contain an API key. entries: a JSON object. A dictionary that
# changes is a new row, and AUTOINCREMENT never uses an id twice.
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS glossary (id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL,
        creation_time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')))""",
    "CREATE INDEX IF NOT EXISTS glossary_owner ON glossary (owner)",
    """CREATE TABLE IF NOT EXISTS dictionary (
        id INTEGER PRIMARY KEY AUTOINCREMENT, glossary TEXT NOT NULL REFERENCES glossary (id) ON DELETE CASCADE,
        source_lang TEXT NOT NULL, target_lang TEXT NOT NULL, entry_count INTEGER NOT NULL, entries BLOB NOT NULL,
        UNIQUE (glossary, source_lang, target_lang))""",
    "PRAGMA user_version = 1",                                                  # writes, so that a full disk is noticed
)
_GLOSSARIES = """
    SELECT glossary.id, name, creation_time, dictionary.id, source_lang, target_lang, entry_count
    FROM glossary LEFT JOIN dictionary ON glossary = glossary.id
    WHERE owner = :owner AND (:id IS NULL OR glossary.id = :id)
    ORDER BY glossary.rowid, source_lang, target_lang"""
# The length of a BLOB is in its row: SQLite does not read the entries for it.
_SIZE = """
    SELECT count(*), total(:record + (SELECT total(:record + length(entries)) FROM dictionary
                                      WHERE glossary = glossary.id))
    FROM glossary WHERE :owner IS NULL OR owner = :owner"""
_ONE_DICTIONARY = "WHERE glossary = ? AND source_lang = ? AND target_lang = ?"


@dataclass(frozen=True)
class Dictionary:
    """Terms for one direction. id: number, which no other dictionary has, nor this one before its last change.
    source_lang, target_lang: codes without script and region (`base_language`)."""

    id: int
    source_lang: str
    target_lang: str
    entry_count: int

    @property
    def languages(self) -> Languages:
        """Source and target language."""
        return self.source_lang, self.target_lang


@dataclass(frozen=True)
class ClientGlossary:
    """Glossary of a client. creation_time: in ISO 8601."""

    glossary_id: str
    name: str
    creation_time: str
    dictionaries: tuple[Dictionary, ...]

    def dictionary(self, languages: Languages) -> Dictionary | None:
        """Return the dictionary for a source and a target language."""
        return next((one for one in self.dictionaries if one.languages == languages), None)


class GlossaryStore:
    """Glossaries of clients. Several threads and processes can use the same file: each method is one transaction, of
    which a crash leaves all or nothing. All methods raise ApiError if the file cannot be used."""

    def __init__(self, directory: Path | None = None) -> None:
        """directory: directory of the file; None: the server stores no glossaries."""
        self._path = None if directory is None else directory / FILE
        self._loaded: OrderedDict[tuple[Dictionary, Languages], Glossary] = OrderedDict()
        self._lock = threading.Lock()
        if self._path is not None:
            _create(self._path)

    @property
    def accepts(self) -> bool:
        """True if the server stores glossaries."""
        return self._path is not None

    def of(self, client: str, glossary_id: str | None = None) -> list[ClientGlossary]:
        """Return the glossaries of a client, the oldest first, or only the one with this identifier."""
        if not self.accepts:
            return []
        with self._transaction() as database:
            return _read(database, client, glossary_id)

    def get(self, client: str, glossary_id: str) -> ClientGlossary:
        """Return a glossary of a client. Raises ApiError if it has no such glossary."""
        return _only(self.of(client, glossary_id))

    def create(self, client: str, name: str, dictionaries: Mapping[Languages, Entries], replaces: bool = False,
               ) -> ClientGlossary:
        """Store a new glossary. replaces: if True, it replaces one with the same name and languages.

        Raises:
            ApiError: the server stores no glossaries, there is no room for it, or it is not valid.
        """
        _require_text(name, "name")
        with self._transaction(changes=True) as database:
            for old in _read(database, client) if replaces else ():
                if old.name == name and {one.languages for one in old.dictionaries} == dictionaries.keys():
                    return _write(database, client, old.glossary_id, dictionaries)
            new = str(uuid.uuid4())
            database.execute("INSERT INTO glossary (id, owner, name) VALUES (?, ?, ?)", (new, _owner(client), name))
            return _write(database, client, new, dictionaries)

    def update(self, client: str, glossary_id: str, dictionaries: Mapping[Languages, Entries], name: str = "",
               adds: bool = False) -> ClientGlossary:
        """Change a glossary.

        Args:
            dictionaries: new entries of the dictionaries to replace, or, with `adds`, to change. name: new name; "":
            the name stays.
        Raises:
            ApiError: see `create`, or the client has no such glossary.
        """
        with self._transaction(changes=True) as database:
            old = _only(_read(database, client, glossary_id))
            _require_text(name or old.name, "name")
            database.execute("UPDATE glossary SET name = ? WHERE id = ?", (name or old.name, glossary_id))
            return _write(database, client, glossary_id, dictionaries, adds)

    def delete(self, client: str, glossary_id: str) -> None:
        """Delete a glossary. Raises ApiError if the client has no such glossary."""
        with self._transaction(changes=True) as database:
            _only(_read(database, client, glossary_id))
            database.execute("DELETE FROM glossary WHERE id = ?", (glossary_id,))

    def delete_dictionary(self, client: str, glossary_id: str, languages: Languages) -> None:
        """Delete a dictionary of a glossary. Raises ApiError if the client has no such glossary, or it no such
        dictionary."""
        with self._transaction(changes=True) as database:
            _only(_read(database, client, glossary_id))
            if not database.execute(f"DELETE FROM dictionary {_ONE_DICTIONARY}", (glossary_id, *languages)).rowcount:
                raise ApiError(404, "The glossary has no such dictionary")

    def entries(self, dictionary: Dictionary) -> dict[str, str]:
        """Return the entries of a dictionary. Raises ApiError if it was changed or deleted in the meantime."""
        with self._transaction() as database:
            row = database.execute("SELECT entries FROM dictionary WHERE id = ?", (dictionary.id,)).fetchone()
        if row is None:
            raise ApiError(404, "The glossary was changed or deleted")
        return dict(parse_json(row[0]))

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

    @contextmanager
    def _transaction(self, changes: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection for a transaction; see `_transaction`."""
        if self._path is None:
            raise ApiError(403, "This server does not store glossaries. Its operator can start it with "
                                "--glossary-directory")
        try:
            with _transaction(self._path, changes) as database:
                yield database
        except sqlite3.Error as error:
            raise ApiError(503, f"The glossaries cannot be used: {error}") from error


def _create(path: Path) -> None:
    """Create the file if it does not exist, and check that it is intact and can be changed."""
    try:
        make_directories(path.parent)
        with _transaction(path, changes=True) as database:
            fault = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if fault != "ok":
                raise sqlite3.DatabaseError(fault)
            for statement in _SCHEMA:
                database.execute(statement)
    except (OSError, sqlite3.OperationalError) as error:
        raise UserError(f"{path} cannot be used: {getattr(error, 'strerror', error)}. Check that the disk has room and "
                        "the directory can be written, or choose another --glossary-directory.") from error
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} is damaged: {error}. Restore it from a backup, or move it away to begin without "
                        "glossaries.") from error


@contextmanager
def _transaction(path: Path, changes: bool) -> Iterator[sqlite3.Connection]:
    """Yield a connection. At the end of the block, all its changes are stored; after an exception, none is.

    Each transaction has a connection of its own, which takes 0.3 ms, so that threads need no lock.
    """
    with closing(sqlite3.connect(path, WAIT_SECONDS, isolation_level=None)) as database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = EXTRA")                          # also after a power cut
        database.execute("BEGIN IMMEDIATE" if changes else "BEGIN")
        with database:
            yield database


def _read(database: sqlite3.Connection, client: str, glossary_id: str | None = None) -> list[ClientGlossary]:
    """Return the glossaries of a client, or the one with this identifier."""
    rows = database.execute(_GLOSSARIES, {"owner": _owner(client), "id": glossary_id}).fetchall()
    return [ClientGlossary(glossary_id, name, created, tuple(Dictionary(*row[3:]) for row in several if row[3]))
            for (glossary_id, name, created), several in groupby(rows, key=lambda row: row[:3])]


def _only(found: Sequence[ClientGlossary]) -> ClientGlossary:
    if not found:
        raise ApiError(404, "There is no such glossary")
    return found[0]


def _write(database: sqlite3.Connection, client: str, glossary_id: str, dictionaries: Mapping[Languages, Entries],
           adds: bool = False) -> ClientGlossary:
    """Write dictionaries of a glossary, and return it; see `GlossaryStore.update`. Raises ApiError if they are too
    large, or there is no room for them."""
    for languages, entries in dictionaries.items():
        key = glossary_id, *languages
        old = database.execute(f"SELECT entries FROM dictionary {_ONE_DICTIONARY}", key).fetchone() if adds else None
        entries = {**(parse_json(old[0]) if old else {}), **entries}
        _require_small(entries, languages)
        encoded = json.dumps(entries, ensure_ascii=False).encode()
        database.execute("REPLACE INTO dictionary (glossary, source_lang, target_lang, entry_count, entries) "
                         "VALUES (?, ?, ?, ?, ?)", (*key, len(entries), encoded))
    for owner, count, size, message in (
            (_owner(client), CLIENT_GLOSSARIES, CLIENT_BYTES, f"A client may have {CLIENT_GLOSSARIES:,} glossaries, "
             f"of {CLIENT_BYTES:,} bytes together. Delete some"),
            (None, MAX_GLOSSARIES, MAX_BYTES, "The server has no room for more glossaries")):
        glossaries, total = database.execute(_SIZE, {"owner": owner, "record": RECORD_BYTES}).fetchone()
        if glossaries > count or total > size:
            raise ApiError(456, message)
    return _only(_read(database, client, glossary_id))


def parse_entries(text: str, format: str, languages: Languages) -> dict[str, str]:
    """Parse entries as DeepL's interface defines them: a term and its translation in each line.

    Args:
        format: tsv or csv. A line of CSV may have two more fields, the languages.
    Raises:
        ApiError: a line is not an entry, a term is there twice, or there are no entries.
    """
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


def _require_small(entries: Entries, languages: Languages) -> None:
    if len(entries) > MAX_ENTRIES:
        raise ApiError(413, f"A dictionary may have {MAX_ENTRIES:,} entries")
    if _glossary(entries, languages).alike > MAX_ALIKE:
        raise ApiError(413, f"More than {MAX_ALIKE:,} words of the terms have the same stem")


def _glossary(entries: Entries, languages: Languages) -> Glossary:
    return Glossary([Term(source, (target,)) for source, target in entries.items()], *languages)


def _owner(client: str) -> str:
    return hashlib.sha256(client.encode()).hexdigest()[:32]
