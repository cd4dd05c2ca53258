"""One file per format of quantised checkpoints: its settings and tensors, made into weights of `kernels.linear`.

`methods` has the formats by name, for those who read no tensors; `parts` puts the files' tensors together.
"""
