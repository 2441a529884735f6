"""Word alignments, and attention maps as a web page or a picture."""
