"""The subcommands of `gpu_probe.py`, one module each."""
