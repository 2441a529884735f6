"""Text formats: each turns a file into blocks of text, and puts the translated blocks back."""
