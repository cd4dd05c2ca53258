"""The `pagemesh` command: parses settings and starts one part, or a whole mesh with `up`.

Owns flags, exit codes and what is printed when a start fails; knows nothing of requests.
"""
