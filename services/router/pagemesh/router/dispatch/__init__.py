"""What stands between admission and placement: requests wait here, in a fair order, while all workers are full.

One `Dispatch` for each model. Knows neither gRPC nor what a request asks for, only who sent it and how large it is.
"""
