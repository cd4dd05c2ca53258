"""A model in one GGUF file: its tensors, and what other models have in the JSON files of a folder. No torch.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Owns the container, the numbers in its blocks, and
the translation of its metadata into config.json, tokenizer.json and what lies beside them. It does not know decoders.
"""
