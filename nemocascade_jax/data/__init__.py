"""From rows to packed arrays: tokenizer, chat rendering, packing, batches."""
