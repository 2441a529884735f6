"""Office documents: archives of XML files."""
