"""A streaming job over a year of flights that is killed half way and still ends right."""
