"""Forks, kept versions and replays of a schedule's queries and stores.

Begin with `play.py`. `rules.py` reads pins past all of the code; `mutants.py` has the rules.
"""
