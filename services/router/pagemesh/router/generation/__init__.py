"""The one path from prompt ids to text: admission, placement, retries, detokenizing, stop strings.

Shared by the OpenAI and the Inference services. Knows neither's messages, only its own nouns.
"""
