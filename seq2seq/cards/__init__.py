"""Model cards: descriptions of models, in the form that the Hugging Face hub reads; names of languages."""
