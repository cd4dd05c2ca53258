"""Steps on a device that computes beside the host: nothing here is particular to CUDA but `accelerator`."""
