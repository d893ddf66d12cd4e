"""The language model: text in, 16 codes per 80 ms frame out."""
