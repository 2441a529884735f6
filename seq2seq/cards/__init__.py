"""Model cards in the format of the Hugging Face hub, and names of languages."""
