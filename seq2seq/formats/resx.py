""".NET's .resx and .resw: strings are translated. Names, comments and resources of other types do not change.

Format: https://learn.microsoft.com/en-us/dotnet/core/extensions/work-with-resx-files-programmatically
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from seq2seq.formats.block import Block
from seq2seq.formats.texts import is_message, trim
from seq2seq.formats.xml_units import XmlFile

# Properties of Windows Forms whose values are no text. Only in the resources of a form, which have names with >>, such
# a name cannot be that of a message.
_PROPERTY = re.compile(r"\.(?:Anchor|AutoScaleMode|AutoSize|AutoSizeMode|BackgroundImageLayout|ClientSize|Dock"
                       r"|FlatStyle|Font|Icon|Image|ImageAlign|ImageKey|ImeMode|Location|Margin|Name|Padding"
                       r"|RightToLeft|ScrollBars|Size|SizeMode|StartPosition|TextAlign|TextImageRelation|Type|Visible"
                       r"|ZOrder)")


class ResxDocument:
    """Resources of .NET, with the interface `Document`. `&` marks the key of a menu entry."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not well-formed, or has no <root>."""
        self._xml = xml = XmlFile(data, "root")
        self.blocks: list[Block] = []
        self._values: list[int] = []                                            # index of each <value>
        resources = [element for element in xml.children(xml.root, "data") if xml.tokens[element].kind == "open"]
        names = {element: xml.tokens[element].attributes.get("name", "") for element in resources}
        of_form = any(name.startswith(">>") for name in names.values())
        for element, name in names.items():
            kept = {"type", "mimetype"} & {*xml.tokens[element].attributes} or name.startswith(">>") \
                or of_form and _PROPERTY.fullmatch(name, max(0, name.rfind(".")))
            value = next(xml.children(element, "value"), None)
            if kept or value is None or xml.tokens[value].kind != "open":
                continue
            block = trim(xml.content(value, keeps_lines=True))[1]
            if is_message(block.text):
                self.blocks.append(replace(block, access_keys="&"))
                self._values.append(value)

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        xml, edits = self._xml, []
        for value, new, block in zip(self._values, translations, self.blocks, strict=True):
            if new != block:
                edits.append((*xml.inside(value), xml.translated(value, new)))
        return xml.encode(edits)
