"""From prompts to vectors: placed on workers, answered in order."""
