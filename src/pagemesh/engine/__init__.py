"""The engine: computes batch after batch. Knows nothing of RPCs, roles and text.

`engine` takes commands from any thread, `loop` schedules, launches and completes steps, a runner (`runner`,
`cuda.runner`) computes them. `loading.load_engine` builds one from settings: the one module here that
brings the numerics in.
"""
