"""Translation of documents: text is found, translated and put back; everything else stays byte for byte."""
