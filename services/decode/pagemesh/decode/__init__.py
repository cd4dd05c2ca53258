"""The decode worker: requests of many routers in one continuous batch, with KV from elsewhere or its own.

Knows neither clients nor text, and no policy: where a prompt is prefilled is the router's decision.
"""
