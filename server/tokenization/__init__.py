"""What the tokenizer of the served model does, over HTTP: text to ids, ids to text, and what the vocabulary is."""
