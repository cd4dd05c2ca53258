"""What vLLM's users type, as this project's own flags: tables of what each of theirs means here, and no more.

Nothing behind the command line knows of it.
"""
