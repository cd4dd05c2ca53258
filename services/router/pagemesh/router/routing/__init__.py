"""Which workers run a request: filters, then scorers in [0, 1], then a picker.

Plain Python over ids and numbers. Knows neither gRPC nor the text of requests.
"""
