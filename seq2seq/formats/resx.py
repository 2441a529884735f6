""".NET's .resx and .resw: strings are translated. Names, comments and resources of other types do not change.

Format: https://learn.microsoft.com/en-us/dotnet/core/extensions/work-with-resx-files-programmatically
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seq2seq.formats.units import Unit
from seq2seq.formats.xml_units import XmlDocument

# Properties of Windows Forms whose values are no text. Only in the resources of a form, which have names with >>, such
# a name cannot be that of a message.
_PROPERTY = re.compile(r"\.(?:Anchor|AutoScaleMode|AutoSize|AutoSizeMode|BackgroundImageLayout|ClientSize|Dock"
                       r"|FlatStyle|Font|Icon|Image|ImageAlign|ImageKey|ImeMode|Location|Margin|Name|Padding"
                       r"|RightToLeft|ScrollBars|Size|SizeMode|StartPosition|TextAlign|TextImageRelation|Type|Visible"
                       r"|ZOrder)")


class ResxDocument(XmlDocument):
    """Resources of .NET. `&` marks the key of a menu entry."""

    root = "root"

    def find_units(self) -> Iterator[Unit]:
        resources = {element: self.tokens[element].attributes for element in self.xml.children(self.xml.root, "data")
                     if self.tokens[element].kind == "open"}
        of_form = any(attributes.get("name", "").startswith(">>") for attributes in resources.values())
        for element, attributes in resources.items():
            name = attributes.get("name", "")
            kept = {"type", "mimetype"} & {*attributes} or name.startswith(">>") or (
                of_form and _PROPERTY.fullmatch(name, max(0, name.rfind("."))))
            value = next(self.xml.children(element, "value"), None)
            if not kept and value is not None and (
                    unit := self.element_unit(value, access_keys="&", key=name, comment=self.xml.text_of(
                        element, "comment"))):
                yield unit
