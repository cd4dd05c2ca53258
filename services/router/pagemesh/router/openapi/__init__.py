"""The router's HTTP routes in OpenAPI's words, made from what reads the bodies."""
