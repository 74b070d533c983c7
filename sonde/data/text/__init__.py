"""Text: corpora, tokenizers, shards of tokens, and the batches made of them."""
