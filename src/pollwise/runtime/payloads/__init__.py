"""Payloads and results on their way to JSON and back: typed values, compression, encryption."""
