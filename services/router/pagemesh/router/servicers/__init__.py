"""The router's gRPC services. They only translate: message to call, outcome to message."""
