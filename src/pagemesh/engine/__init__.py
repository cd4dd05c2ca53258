"""The engine: computes batch after batch. Knows nothing of RPCs, roles and text.

`engine` takes commands from any thread, `loop` schedules, launches and completes steps, a runner (`cpu_runner`,
`cuda.runner`) computes them. `pagemesh.loading` builds one.
"""
