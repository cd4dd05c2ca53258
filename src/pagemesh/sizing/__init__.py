"""How much memory a model needs and how much there is, before anything is loaded. No torch."""
