"""Zip archives of documents, in memory: nothing is written to disk, and hostile archives are refused."""

from __future__ import annotations

import copy
import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO

from seq2seq.files import open_zip
from seq2seq.formats.block import MAX_BYTES, DocumentError, require_count, require_size

MAX_MEMBERS = 10_000
OLE_SIGNATURE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of a document in Office's old binary format, or of one that is encrypted with a password."""


class Archive:
    """Zip archive in memory. All members are unpacked at once, so that a damaged one is found before the translation.

    contents: unpacked contents of each member, by its name.
    """

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the data are not a zip archive, or it is damaged, encrypted, too large or hostile."""
        require_size(data)
        if data.startswith(OLE_SIGNATURE):
            raise DocumentError("the document is in the old binary format of Office, or is encrypted with a password. "
                                "Save it as .docx, .pptx or .odt, without a password.")
        self._data = data
        try:
            with open_zip(BytesIO(data), metadata_encoding="utf-8") as archive:
                self._members = archive.infolist()
                self._require_bounded()
                self.contents: dict[str, bytes] = {}
                for info in self._members:
                    with archive.open(info) as file:                            # never more than the archive states
                        self.contents[info.filename] = file.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, OSError, struct.error) as error:
            raise DocumentError(f"the document is not an intact zip archive, as .docx, .pptx and .odt are ({error}). "
                                "Save it again as one of these, without a password.") from error

    def _require_bounded(self) -> None:
        require_count(len(self._members), MAX_MEMBERS, "members")
        require_count(sum(info.file_size for info in self._members), MAX_BYTES, "bytes unpacked")
        names = [info.filename for info in self._members]
        if len(set(names)) < len(names):
            raise DocumentError("two members of the archive have the same name. Save the document again.")
        if leading_out := [name for name in names if name.startswith("/") or ".." in name.split("/")]:
            raise DocumentError(f"the name of the member {leading_out[0]!r} leads out of the archive.")
        if any(info.flag_bits & 1 for info in self._members):
            raise DocumentError("the document is encrypted. Save it without a password.")
        # zipfile would unpack members of other methods as a whole, whatever size the archive states.
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in self._members):
            raise DocumentError("a member of the archive is packed by another method than deflate. Save the document "
                                "again.")

    def read(self, name: str) -> bytes:
        """Return the contents of a member."""
        if name not in self.contents:
            raise DocumentError(f"the document has no {name}. It is damaged, or of another format.")
        return self.contents[name]

    def replace(self, changed: Mapping[str, bytes]) -> bytes:
        """Return the archive with some members replaced. All other members keep their contents, order and times."""
        if not changed:
            return self._data
        result = BytesIO()
        with zipfile.ZipFile(result, "w") as archive:
            for info in self._members:
                archive.writestr(copy.copy(info), changed.get(info.filename, self.contents[info.filename]))
        return result.getvalue()
