"""Domains of several turns; each environment follows `rows.records.Environment`."""
