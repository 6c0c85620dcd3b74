"""The tiny tokenizer (512 pieces) as package data; tools/train_tokenizer.py writes it."""
