"""What an engine takes and gives, as plain values: requests, KV, load, and the engine's interface. No torch, no grpc."""
