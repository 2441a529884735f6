"""Text formats: each format turns a file into blocks of text, and puts the translated blocks back."""
