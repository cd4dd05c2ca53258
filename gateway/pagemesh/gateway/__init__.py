"""The gateway: Envoy's configuration, made in one place, and how Envoy is started and drained.

Knows the `OpenAI` service's HTTP annotations and where routers listen; knows nothing of models or
tokens.
"""
