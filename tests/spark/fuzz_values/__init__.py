"""Differential fuzz of values: random schemas and hostile values, through each way in and out."""
