"""Word alignments, attention maps as a web page or a picture, and learning curves."""
