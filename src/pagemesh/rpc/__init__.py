"""What every gRPC server and client of the mesh shares: lifecycle, health, channels, deadlines, errors.

Knows grpc and `pagemesh.errors`; knows no service, no engine and no message of `pagemesh.v1`.
"""
