"""CPU kernels written as vector code and compiled for this machine's processor when a model is loaded.

`emit` writes them, `compiled` turns them into machine code (LLVM, by llvmlite: no compiler has to be
installed), `parallel` runs them on torch's own threads. `recording` notes the kernels of a computation, and `program`
runs them again in one call.
"""
