"""See `pagemesh.entrypoints`."""
