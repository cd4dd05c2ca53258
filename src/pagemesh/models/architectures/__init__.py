"""One file per architecture: Hugging Face's config.json and weight names, mapped onto the decoder's spec.

Imports no tensors. What several architectures share is in `fields` (settings) and `names` (weights).
"""
