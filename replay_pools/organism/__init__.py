"""The embedded default model: weights, tokenizer, teacher, and the script that built them."""
