"""Zip archives of documents: hostile archives are refused, and members that do not change keep their bytes."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from lzma import LZMAError

from seq2seq.documents.block import MAX_BYTES, DocumentError

MAX_MEMBERS = 10_000
MAX_RATIO = 500
"""Maximum ratio of the unpacked to the packed size, for archives of more than 10 MB unpacked. Office files have ratios
of 5 to 50."""
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class Archive:
    """Zip archive in memory. Nothing is written to disk."""

    def __init__(self, data: bytes) -> None:
        """Read the directory of an archive.

        Raises:
            DocumentError: the data are not a zip archive, or the archive is damaged, encrypted, too large or hostile.
        """
        if data.startswith(_OLE):
            raise DocumentError("the document is in the old binary format of Office, or is encrypted with a password. "
                                "Save it as .docx, .pptx or .odt without a password.")
        if len(data) > MAX_BYTES:
            raise DocumentError(f"the document has {len(data):,} bytes, but {MAX_BYTES:,} are the maximum. Divide it.")
        if not data.startswith(_LOCAL):
            raise DocumentError("the document is no zip archive, but .docx, .pptx and .odt are. It is damaged, or of "
                                "another format: save it again as one of these.")
        self._data = data
        try:
            self._archive = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, RuntimeError, OSError, struct.error) as error:
            raise DocumentError(f"the document is a damaged zip archive ({error}). Save it again.") from error
        self._members = {info.filename: info for info in self._archive.infolist()}
        self._check()

    def _check(self) -> None:
        members = self._archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise DocumentError(f"the archive has {len(members):,} members, but {MAX_MEMBERS:,} are the maximum.")
        if len(self._members) < len(members):
            raise DocumentError("two members of the archive have the same name. Save the document again.")
        size = sum(info.file_size for info in members)
        if size > MAX_BYTES:
            raise DocumentError(f"the document has {size:,} bytes unpacked, but {MAX_BYTES:,} are the maximum. "
                                "Divide it.")
        if size > max(10_000_000, MAX_RATIO * len(self._data)):
            raise DocumentError(f"the archive unpacks to more than {MAX_RATIO} times its size, which no office "
                                "document does.")
        for info in members:
            name = info.orig_filename
            if (name.startswith(("/", "\\")) or ":" in name.split("/")[0] or "\0" in name
                    or ".." in name.replace("\\", "/").split("/")):
                raise DocumentError(f"the name of the member {name!r} leads out of the archive.")
            if info.flag_bits & 1:
                raise DocumentError(f"the member {name!r} is encrypted. Save the document without a password.")
        self._ends = self._find_ends(members)

    def _find_ends(self, members: list[zipfile.ZipInfo]) -> dict[int, int]:
        """Return the end offset of each member. The keys are the offsets of the headers."""
        begins = sorted(info.header_offset for info in members)
        if len(set(begins)) < len(begins):
            raise DocumentError("a member of the archive overlaps with another member of the archive.")
        ends = dict(zip(begins, [*begins[1:], self._archive.start_dir], strict=True))
        at = self._data.rfind(_END)
        directory = struct.unpack_from("<I", self._data, at + 16)[0] if 0 <= at <= len(self._data) - 22 else -1
        if directory != self._archive.start_dir:
            raise DocumentError("the zip archive has data before its first member, or is in the format Zip64. Save the "
                                "document again.")
        for info in members:
            header = self._data[info.header_offset:info.header_offset + 30]
            if len(header) < 30 or not header.startswith(_LOCAL):
                raise DocumentError(f"the member {info.filename!r} of the archive is damaged. Save the document again.")
            if (info.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26)) + info.compress_size
                    > ends[info.header_offset]):
                raise DocumentError(f"the member {info.filename!r} overlaps with another member of the archive.")
        return ends

    @property
    def names(self) -> list[str]:
        """Names of the members, in the order of the archive."""
        return list(self._members)

    def read(self, name: str) -> bytes:
        """Return a member, unpacked.

        Raises:
            DocumentError: the member is missing or damaged, or its size is not the one in the archive's directory.
        """
        if name not in self._members:
            raise DocumentError(f"the document has no {name}. It is damaged, or of another format.")
        info = self._members[name]
        try:
            with self._archive.open(info) as file:
                content = file.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, ValueError, RuntimeError, OSError) as error:
            raise DocumentError(f"{name}: the member of the archive is damaged ({error}). Save the document again."
                                ) from error
        if len(content) != info.file_size:
            raise DocumentError(f"{name}: the member has another size than the directory of the archive says.")
        return content

    def replace(self, changed: Mapping[str, bytes]) -> bytes:
        """Return the archive with some members replaced. The packed bytes of all other members do not change."""
        data = self._data
        by_offset = sorted(self._members.values(), key=lambda info: info.header_offset)
        parts = [data[:by_offset[0].header_offset]]
        size = len(parts[0])
        begins: dict[int, int] = {}
        fields: dict[int, tuple[int, int, int]] = {}                    # checksum, packed and unpacked size
        for info in by_offset:
            begin = info.header_offset
            part = data[begin:self._ends[begin]]
            if info.filename in changed:
                content = changed[info.filename]
                packer = zlib.compressobj(6, zlib.DEFLATED, -15)
                packed = content if info.compress_type == 0 else packer.compress(content) + packer.flush()
                fields[begin] = (zlib.crc32(content), len(packed), len(content))
                name_size, = struct.unpack_from("<H", part, 26)
                header = bytearray(part[:30 + name_size])
                _describe(header, 6, 14, fields[begin])
                struct.pack_into("<H", header, 28, 0)                   # no extra fields
                part = bytes(header) + packed
            begins[begin] = size
            parts.append(part)
            size += len(part)
        end = data.rfind(_END)
        directory = bytearray(data[self._archive.start_dir:end])
        at = 0
        for _ in self._members:
            begin, = struct.unpack_from("<I", directory, at + 42)
            if begin not in begins:
                raise DocumentError("the zip archive is in the format Zip64. Save the document again.")
            struct.pack_into("<I", directory, at + 42, begins[begin])
            if begin in fields:
                _describe(directory, at + 8, at + 16, fields[begin])
            at += 46 + sum(struct.unpack_from("<HHH", directory, at + 28))
        tail = bytearray(data[end:])
        struct.pack_into("<I", tail, 16, size)
        return b"".join([*parts, directory, tail])


def _describe(header: bytearray, flags_at: int, sizes_at: int, fields: tuple[int, int, int]) -> None:
    """Write the compression method, the checksum and the sizes of a member into its header."""
    flags, method = struct.unpack_from("<HH", header, flags_at)
    struct.pack_into("<HH", header, flags_at, flags & ~8, 8 if method else 0)     # bit 3: sizes follow the data
    struct.pack_into("<III", header, sizes_at, *fields)
